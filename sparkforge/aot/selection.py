"""Which modules an image gets: `needed` leaves out those that only parts of profiles want that are off by default.

A module that no part names is always compiled. The map from part to modules is data, in recipes/profiles/parts.yaml.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import filter as matching
from typing import Literal

import msgspec

from sparkforge.core.errors import BadInput

AotChoice = Literal["needed", "all", "none"]
ADD = "invoke build --aot all"  # adds what `needed` leaves out


class PartModules(msgspec.Struct, frozen=True):
    """What one part of a profile asks of FlashInfer.

    Attributes:
        part: its name.
        on: whether it is on by default.
        modules: names of modules, with `*` for any text.
    """

    part: str
    on: bool
    modules: tuple[str, ...]


def left_out(names: Sequence[str], parts: Sequence[PartModules]) -> dict[str, list[str]]:
    """Modules that only parts need which are off by default: {module: those parts}.

    Args:
        names: every module that FlashInfer lists.
        parts: what each part needs.

    Raises:
        BadInput: a part names a module that FlashInfer does not list.
    """
    needs: dict[str, set[str]] = {}
    for one in parts:
        for pattern in one.modules:
            if not (found := matching(names, pattern)):
                raise BadInput(
                    f"part {one.part} names a module that FlashInfer does not list: {pattern}",
                    why=f"modules: {', '.join(names)}",
                    do=f"correct {one.part}.modules in recipes/profiles/parts.yaml",
                )
            needs.setdefault(one.part, set()).update(found)
    always = {name for one in parts if one.on for name in needs.get(one.part, ())}
    off = {one.part: needs.get(one.part, set()) - always for one in parts if not one.on}
    return {name: asking for name in names if (asking := sorted(part for part in off if name in off[part]))}


def parts_without(modules: dict[str, list[str]]) -> dict[str, list[str]]:
    """The same by part: {part: modules that it needs and that are left out}."""
    parts = sorted({part for asking in modules.values() for part in asking})
    return {part: [name for name, asking in modules.items() if part in asking] for part in parts}
