"""Which patches may go: none of which a living patch depends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from sparkforge.patches.rebase.item import Item
from sparkforge.patches.rebase.outcome import Verdict


def weighed(verdicts: Sequence[Verdict], items: Iterable[Item]) -> tuple[Verdict, ...]:
    """The verdicts, each of a patch that might be dropped with the living patches that depend on it.

    Args:
        verdicts: of one series, or of all that go to new releases together.
        items: their patches, and those of series that stay where they are.
    """
    needs = {item.id: item.depends_on for item in items}
    going = {one.id for one in verdicts if one.dropped or one.outcome.advice == "drop"}
    while kept := {one for item, wanted in needs.items() if item not in going for one in wanted if one in going}:
        going -= kept
    might = {one.id for one in verdicts if one.dropped or one.outcome.advice == "drop"}
    return tuple(
        msgspec.structs.replace(
            one,
            dependants=tuple(item for item, wanted in needs.items() if one.id in wanted and item not in going)
            if one.id in might
            else (),
        )
        for one in verdicts
    )
