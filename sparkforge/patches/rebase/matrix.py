"""A series over many releases: what became of each patch, and where it first broke or was upstreamed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from sparkforge.core.errors import BadInput
from sparkforge.core.hashing import key_of
from sparkforge.core.store import Store
from sparkforge.inputs import releases
from sparkforge.inputs.recipes import Stack
from sparkforge.patches.place import place
from sparkforge.patches.rebase import item
from sparkforge.patches.rebase.engine import judge
from sparkforge.patches.rebase.outcome import Outcome, Verdict
from sparkforge.patches.series import load

_KIND = "rebases"
_RULES = "rebase 1"  # another number when the rules that lead to a verdict change
_AT_ONCE = 2
_SHORT = {Outcome.PARTLY: "partly"}


class Row(msgspec.Struct, frozen=True):
    """A patch over the releases.

    Attributes:
        id: of the patch.
        title: its subject.
        outcomes: one a release, in their order.
        broke: first release that does not take it as it is or by merge; "" where all do.
        upstreamed: first release from which on it is to be dropped; "" where there is none, or a living patch needs it.
    """

    id: str
    title: str
    outcomes: tuple[Outcome, ...]
    broke: str
    upstreamed: str


class Matrix(msgspec.Struct, frozen=True):
    """A series over releases.

    Attributes:
        upstream: name.
        start: release that the series is for.
        releases: those that it was taken to, in order.
        rows: one a patch, in the order of the series.
    """

    upstream: str
    start: str
    releases: tuple[str, ...]
    rows: tuple[Row, ...]


def matrix(stack: Stack, store: Store, component: str, asked: Sequence[str] = ()) -> Matrix:
    """The verdicts on a series over releases, computed once for each pair of trees and series.

    Args:
        stack: where the series stands.
        store: holds the releases and the verdicts.
        component: the upstream.
        asked: releases; every final one after the pin where none is named.

    Raises:
        BadInput: no such upstream, or a release cannot be a target.
    """
    if component not in stack.upstreams:
        why = f"upstreams: {', '.join(stack.upstreams)}"
        raise BadInput(f"there is no upstream {component!r} in {stack.name}", why=why)
    upstream = stack.upstreams[component]
    at = place(stack, store, component)
    series = load(at.folder)
    items = item.of_series(at.git, series)
    named = [releases.at(upstream, one) for one in asked or releases.newer(upstream)]
    pins = [releases.commit(store, component, one) for one in named]

    def verdicts(new: str) -> tuple[Verdict, ...]:
        key = key_of(_RULES, at.tree, series.sha256, new)
        file = store.path(_KIND, key) / "verdicts.json"
        if not file.is_file():
            with store.writing(_KIND, key) as folder:
                found = judge(at.git, at.commit, new, items).verdicts
                (folder / file.name).write_bytes(msgspec.json.encode(found))
        return msgspec.json.decode(file.read_bytes(), type=tuple[Verdict, ...])

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        columns = list(pool.map(verdicts, (pin.tree for pin in pins)))
    names = tuple(one.release for one in named)
    return Matrix(
        upstream=component,
        start=upstream.release,
        releases=names,
        rows=tuple(_row(names, cells) for cells in zip(*columns, strict=True)),
    )


def _row(names: Sequence[str], cells: Sequence[Verdict]) -> Row:
    there = [one.then == "drop" for one in cells]
    # "From which on": a release that has it and a later one that lacks it again is no reason to drop it.
    lasting = next((n for n, is_there in enumerate(there) if is_there and all(there[n:])), None)
    return Row(
        id=cells[0].id,
        title=cells[0].title,
        outcomes=tuple(one.outcome for one in cells),
        broke=next((name for name, one in zip(names, cells, strict=True) if not one.applies), ""),
        upstreamed="" if lasting is None else names[lasting],
    )


def head(found: Matrix) -> tuple[str, ...]:
    """Headings of the table."""
    return ("patch", *found.releases, "broke in", "to drop from")


def cells(row: Row) -> tuple[str, ...]:
    """A row under `head`."""
    return (row.id, *(_SHORT.get(one, one.value) for one in row.outcomes), row.broke, row.upstreamed)


def markdown(found: Matrix) -> str:
    """The table as a page; equal inputs give equal bytes."""
    command = f"invoke rebase.matrix --component {found.upstream} --releases {','.join(found.releases)}"
    lines = [f"# {found.upstream} {found.start} over {len(found.releases)} releases", "", f"Made by `{command}`.", ""]
    table = [head(found), ("---",) * len(head(found)), *(cells(row) for row in found.rows)]
    lines += [f"| {' | '.join(line)} |" for line in table]
    lines += ["", *(f"- {row.id}: {row.title}" for row in found.rows), ""]
    return "\n".join(lines)
