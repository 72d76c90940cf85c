"""A profile as words of `vllm serve` and variables, with the parts that were asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from sparkforge.core.errors import BadInput
from sparkforge.serving.load import Catalogue
from sparkforge.serving.profile import Flags, FlagValue, Part, Profile, Scalar

SOAKED = "soaked"
ALL = "all"
PORT = 8000  # vLLM's default


@dataclass(frozen=True)
class Command:
    """The command of a profile.

    Attributes:
        profile: the profile.
        on: parts that are on, in the profile's order.
        off: the other parts.
        groups: the words after the model, a group for each flag.
        env: variables.
    """

    profile: Profile
    on: tuple[str, ...]
    off: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    env: Mapping[str, str]

    @property
    def words(self) -> list[str]:
        """Model and flags."""
        return [self.profile.model, *(word for group in self.groups for word in group)]


def command(known: Catalogue, profile: Profile, parts: str = SOAKED, *, bare: bool = False) -> Command:
    """The command of a profile with some of its parts.

    Args:
        known: holds its parts.
        profile: the profile.
        parts: `soaked`, `all`, or names of parts to turn on besides the soaked ones, with commas between.
        bare: without any part.

    Raises:
        BadInput: a name is no part of the profile; lists the choices.
    """
    of_it = known.parts_of(profile)
    on = () if bare else _on(profile, of_it, parts)
    flags: Flags = dict(profile.flags)
    env = dict(profile.env)
    for name in on:
        flags |= of_it[name].flags
        env |= of_it[name].env
    off = tuple(name for name in of_it if name not in on)
    return Command(profile, on, off, (*_said(profile), *groups_of(flags)), env)


def with_users(command: Command, words: Sequence[str]) -> Command:
    """Append a user's words; they replace the profile's words for the same flag.

    A flag that the user spells otherwise stays twice: vLLM's parser takes the last one, which is the user's.
    """
    users: list[list[str]] = []
    for word in words:
        if not users or (word.startswith("-") and not word[1:2].isdigit()):
            users.append([])
        users[-1].append(word)
    named = {group[0].partition("=")[0].replace("_", "-") for group in users}
    kept = [group for group in command.groups if group[0] not in named]
    return replace(command, groups=(*kept, *map(tuple, users)))


def _on(profile: Profile, of_it: Mapping[str, Part], parts: str) -> tuple[str, ...]:
    asked = {name for name in parts.split(",") if name}
    more = of_it.keys() if ALL in asked else asked - {SOAKED}
    if unknown := sorted(set(more) - of_it.keys()):
        raise BadInput(
            f"{profile.name} has no part {unknown[0]!r}",
            why=f"parts: {', '.join(of_it) or 'it has none'}; or {SOAKED}, {ALL}",
            do="invoke profiles --name " + profile.name,
        )
    return tuple(name for name, part in of_it.items() if part.on or name in more)


def _said(profile: Profile) -> list[tuple[str, ...]]:
    """Words for the keys of a profile that are not flags."""
    found: list[tuple[str, ...]] = []
    if profile.revision is not None:
        found.append(("--revision", profile.revision))
    if profile.served:
        found.append(("--served-model-name", *profile.served))
    if profile.container.port != PORT:
        found.append(("--port", str(profile.container.port)))
    return found


def groups_of(flags: Flags) -> tuple[tuple[str, ...], ...]:
    """Words of flags, a group for each."""
    return tuple(group(flag, value) for flag, value in flags.items())


def group(flag: str, value: FlagValue) -> tuple[str, ...]:
    """Words of one flag: bare for true, `--no-` for false, JSON for a mapping.

    >>> group("enforce-eager", True), group("enable-prefix-caching", False)
    (('--enforce-eager',), ('--no-enable-prefix-caching',))
    """
    if isinstance(value, bool):
        return (f"--{flag}",) if value else (f"--no-{flag}",)
    if isinstance(value, dict):
        return (f"--{flag}", msgspec.json.encode(value).decode())
    if isinstance(value, list):
        return (f"--{flag}", *(_plain(one) for one in value))
    return (f"--{flag}", _plain(value))


def _plain(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
