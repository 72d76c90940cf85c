"""Reading profiles; an error names the file, the place in it and the choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkforge.core.errors import BadInput
from sparkforge.core.paths import RECIPES, STACKS, shown
from sparkforge.inputs.recipes import Target, load
from sparkforge.serving.profile import Flags, Part, Profile

PROFILES = RECIPES / "profiles"
PARTS = "parts"
# Flags that other keys or the command line set.
_OURS = {
    "model": "model",
    "revision": "revision",
    "served-model-name": "served",
    "port": "container.port",
    "profile": "the command line",
    "parts": "parts",
}


@dataclass(frozen=True)
class Catalogue:
    """Every profile of a checkout, and the parts that they name.

    Attributes:
        profiles: by name, sorted.
        parts: by name.
    """

    profiles: Mapping[str, Profile]
    parts: Mapping[str, Part]

    def find(self, name: str) -> Profile:
        """Profile by name.

        Raises:
            BadInput: unknown; lists the choices.
        """
        if name not in self.profiles:
            raise BadInput(
                f"there is no profile {name!r}", why=f"profiles: {', '.join(self.profiles)}", do="invoke profiles"
            )
        return self.profiles[name]

    def default(self, target: Target) -> Profile:
        """The profile that images of a target serve when they are given no words."""
        return next(one for one in self.profiles.values() if target in one.default_of)

    def parts_of(self, profile: Profile) -> dict[str, Part]:
        """Its parts by name, in its order."""
        return {name: self.parts[name] for name in profile.parts}


def catalogue(folder: Path = PROFILES) -> Catalogue:
    """Read all profiles of a folder and check them against each other.

    Raises:
        BadInput: a file is not valid; names it and the key.
    """
    of_parts = folder / f"{PARTS}.yaml"
    parts = load(of_parts, dict[str, Part])
    for name, part in parts.items():
        _flags(of_parts, f"{name}.flags", part.flags)
        if not part.flags and not part.env:
            _refuse(of_parts, f"{name}: it sets neither `flags` nor `env`")
        if part.held_back and part.soak is None:
            _refuse(of_parts, f"{name}.held_back: a part without a soak is off anyway")
    profiles = {}
    for path in sorted(folder.glob("*.yaml")):
        if path != of_parts:
            profiles[path.stem] = _one(path, parts)
    for target in ("serve", "cpu"):
        names = [one.name for one in profiles.values() if target in one.default_of]
        if len(names) != 1:
            _refuse(folder, f"default_of: {target} is named by {', '.join(names) or 'none'}; one profile names it")
    return Catalogue(profiles, parts)


def together(parts: Sequence[Part]) -> frozenset[str]:
    """Soaks that cover all parts that are on, as `result: check`; one empty word if no part is on."""
    soaks = [part.soak for part in parts if part.soak is not None and part.on]
    taken = [frozenset(f"{soak.result}: {check}" for check in soak.checks) for soak in soaks]
    return frozenset.intersection(*taken) if taken else frozenset([""])


def _one(path: Path, parts: Mapping[str, Part]) -> Profile:
    profile = load(path, Profile)
    if profile.name != path.stem:
        _refuse(path, f"name: {profile.name!r} is not the file's name")
    if not (STACKS / f"{profile.stack}.yaml").is_file():
        known = ", ".join(sorted(one.stem for one in STACKS.glob("*.yaml")))
        _refuse(path, f"stack: there is no {profile.stack!r}; stacks: {known}")
    if wrong := set(profile.default_of) - set(profile.targets):
        _refuse(path, f"default_of: {', '.join(sorted(wrong))} is not among its targets")
    _flags(path, "flags", profile.flags)
    _parts(path, profile, parts)
    _container(path, profile)
    return profile


def _parts(path: Path, profile: Profile, parts: Mapping[str, Part]) -> None:
    for here, name in enumerate(profile.parts):
        if name not in parts:
            _refuse(path, f"parts[{here}]: there is no {name!r}; parts: {', '.join(parts)}")
        if name in profile.parts[:here]:
            _refuse(path, f"parts[{here}]: {name!r} is named twice")
        both = (profile.flags.keys() & parts[name].flags.keys()) | (profile.env.keys() & parts[name].env.keys())
        if both:
            _refuse(path, f"{', '.join(sorted(both))}: part {name} sets it too; set it in one place")
    if not together([parts[name] for name in profile.parts]):
        _refuse(path, "parts: those that are on were never soaked together; no soak covers all of them")


def _container(path: Path, profile: Profile) -> None:
    container = profile.container
    if container.shm and container.ipc == "host":
        _refuse(path, "container.shm: ipc of the host has the host's /dev/shm; say `ipc: private`")
    if (profile.cluster is None) != ("tensor-parallel-size" not in profile.flags):
        _refuse(path, "cluster: it goes with flags.tensor-parallel-size, one GPU a machine")
    if profile.cluster is not None and container.network != "host":
        _refuse(path, "container.network: machines of a cluster talk over the host's network; say `host`")


def _flags(path: Path, key: str, flags: Flags) -> None:
    for flag, value in flags.items():
        if flag in _OURS:
            _refuse(path, f"{key}.{flag}: it is set by {_OURS[flag]}")
        if flag.startswith("no-"):
            _refuse(path, f"{key}.{flag}: say `{flag.removeprefix('no-')}: false`")
        if isinstance(value, list | dict) and not value:
            _refuse(path, f"{key}.{flag}: it is empty")


def _refuse(path: Path, why: str) -> None:
    raise BadInput(f"{shown(path)} is not a valid recipe", why=why)
