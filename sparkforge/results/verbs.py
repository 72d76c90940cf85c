"""What the command line asks of proofs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparkforge.core import console
from sparkforge.core.errors import BadInput
from sparkforge.core.paths import ROOT, shown
from sparkforge.core.store import Store
from sparkforge.git.of_store import git_of
from sparkforge.inputs.recipes import Stack
from sparkforge.results import stamp as stamping
from sparkforge.results.identity import Sources
from sparkforge.results.proofs import HEAD, LIST, Row, Stamp, listed, rows


def every(stack: Stack) -> list[Row]:
    """All proofs with their state."""
    return rows(Sources.of(stack))


def table(stack: Stack) -> str:
    """All proofs, for people; what repeats those that do not stand is below."""
    found = every(stack)
    lines = [console.table(HEAD, [row.cells() for row in found])]
    lines += [f"\n{row.result}: repeat with\n    {row.proof.repeat}" for row in found if row.why]
    return "\n".join(lines)


def stamp(stack: Stack, store: Store, path: Path, *, trees: Sequence[str] = (), commit: str = "") -> Stamp:
    """Stamp a listed result.

    Args:
        stack: whose trees were read.
        store: that holds them.
        path: the result.
        trees: `UPSTREAM=ID`, over what the result says.
        commit: of the checkout; "" takes the files as they stand.

    Raises:
        BadInput: the result is not listed, or as `stamping.stamp`.
    """
    name = str(path.resolve().relative_to(ROOT)) if path.resolve().is_relative_to(ROOT) else str(path)
    proofs = listed()
    if name not in proofs:
        raise BadInput(f"{name} is not listed", why=f"{shown(LIST)} has: {', '.join(proofs)}", do="add an entry for it")
    given = {}
    for one in trees:
        upstream, equals, tree = one.partition("=")
        if not equals or upstream not in stack.upstreams:
            raise BadInput(f"{one!r} names no tree", do="--tree flashinfer=ID")
        given[upstream] = tree
    return stamping.stamp(path, proofs[name], Sources.of(stack), git_of(store), trees=given, commit=commit)
