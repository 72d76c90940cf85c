"""The list of results, and what each is worth now.

States: *fresh* (bound, right, and every source is as it was), *stale* (a source has changed), *failed* (its samples do
not pass its judge), *edited* (its content has another hash than the run wrote), *unbound* (nothing binds it to a run,
or what does cannot be trusted: a record of what was seen and no proof) and *missing*.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.paths import RESULTS, ROOT, shown
from sparkforge.core.store import Store
from sparkforge.git.objects import entries
from sparkforge.git.of_store import git_of
from sparkforge.inputs.recipes import Stack, load
from sparkforge.patches import trees
from sparkforge.results.provenance import KEY, blob, digest

LIST = RESULTS / "proofs.yaml"
HEAD = ("result", "state", "what it shows", "why")
_SHOWN = 3


class Proof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the list; its key is the result file, relative to the checkout.

    Attributes:
        what: what it shows, in one line.
        where: the machine that it needs, and ran on.
        repeat: the command that makes it again.
        judge: `FILE:FUNCTION`, a function that takes the result and returns what is wrong with its samples; "" where
            there is nothing to judge, only times say.
        trees: upstreams of which it must have opened files; without them it says nothing of our patches.
        release: whether a release needs it fresh.
    """

    what: str
    where: str
    repeat: str
    judge: str = ""
    trees: tuple[str, ...] = ()
    release: bool = False


class State(Enum):
    """What a result is worth now; see the module."""

    FRESH = "fresh"
    STALE = "stale"
    FAILED = "failed"
    EDITED = "edited"
    UNBOUND = "unbound"
    MISSING = "missing"


@dataclass(frozen=True)
class Row:
    """A result and its state.

    Attributes:
        result: the file, relative to the checkout.
        proof: its entry.
        state: what it is worth now.
        why: sources that differ, findings of the judge, or what else is wrong; empty for a fresh one.
        run: when and at which commit it was made; empty for an unbound one.
    """

    result: str
    proof: Proof
    state: State
    why: tuple[str, ...] = ()
    run: tuple[str, ...] = ()

    def cells(self) -> tuple[str, ...]:
        """Under `HEAD`."""
        more = (f"and {len(self.why) - _SHOWN} more",) if len(self.why) > _SHOWN else ()
        name = self.result.removeprefix("results/").removesuffix(".json")
        return (name, self.state.value, self.proof.what, "; ".join(self.why[:_SHOWN] + more))

    def plain(self) -> dict[str, Any]:
        """For `--json`."""
        said = {"state": self.state.value, "why": list(self.why), "run": list(self.run)}
        return {"result": self.result, **msgspec.to_builtins(self.proof), **said}


def listed(path: Path = LIST) -> dict[str, Proof]:
    """Every result, by its file.

    Raises:
        BadInput: the list is not valid.
    """
    return load(path, dict[str, Proof])


def tree_files(stack: Stack, store: Store) -> Callable[[str], Mapping[str, str]]:
    """A function that gives git's blob id of every file of an upstream's patched tree, made when it is asked for."""
    return cache(lambda upstream: files_of(store, trees.of(store, stack, upstream).id))


def files_of(store: Store, tree: str) -> Mapping[str, str]:
    """Git's blob id of every file of a tree that the store holds, by path."""
    return {path: entry.blob for path, entry in entries(git_of(store), tree).items()}


def rows(
    files: Callable[[str], Mapping[str, str]], proofs: Mapping[str, Proof] | None = None, *, root: Path = ROOT
) -> list[Row]:
    """State of every result.

    Args:
        files: blob ids of an upstream's patched tree, by path; asked only for upstreams that a bound result read.
        proofs: by result file; the list of this checkout by default.
        root: the checkout.
    """
    return [_row(files, root, name, proof) for name, proof in (listed() if proofs is None else proofs).items()]


def _row(files: Callable[[str], Mapping[str, str]], root: Path, name: str, proof: Proof) -> Row:
    path = root / name
    if not path.is_file():
        return Row(name, proof, State.MISSING, ("there is no such file",))
    said = _read(path)
    record = said.get(KEY)
    if not isinstance(record, dict):
        return Row(name, proof, State.UNBOUND, ("made before results were bound",))
    run = (
        record["begun"],
        str(record["commit"]["id"]),
        *(f"dirty: {file}" for file in record["commit"]["dirty"] or ()),
    )
    if record.get("sha256") != digest(said):
        return Row(name, proof, State.EDITED, ("its content is not what the run wrote",), run)
    if wrong := [
        *record["wrong"],
        *(f"no file of {one} was opened" for one in proof.trees if one not in record["trees"]),
    ]:
        return Row(name, proof, State.UNBOUND, tuple(wrong), run)
    if findings := judged(root, proof.judge, said):
        return Row(name, proof, State.FAILED, tuple(findings), run)
    differing = tuple(_differing(files, root, record["reads"]))
    return Row(name, proof, State.STALE if differing else State.FRESH, differing, run)


def judged(root: Path, judge: str, result: Mapping[str, Any]) -> list[str]:
    """What a judge finds wrong with a result's samples; a result that lacks what it should hold is wrong too.

    Raises:
        BadInput: there is no such judge.
    """
    if not judge:
        return []
    file, _, name = judge.partition(":")
    spec = importlib.util.spec_from_file_location(f"judge_{abs(hash(file))}", root / file)
    if spec is None or spec.loader is None or not (root / file).is_file():
        raise BadInput(f"there is no judge {judge}", why=f"{file} is no Python file", do=f"correct {shown(LIST)}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        return [str(one) for one in getattr(module, name)(result)]
    except (KeyError, TypeError, IndexError) as lacking:
        return [f"not what {judge} judges: {type(lacking).__name__}: {lacking}"]


def _differing(files: Callable[[str], Mapping[str, str]], root: Path, reads: Mapping[str, str]) -> list[str]:
    """Sources that are not what the run opened."""
    found = []
    for name, then in reads.items():
        upstream, colon, path = name.partition(":")
        if colon:
            now = files(upstream).get(path)
        else:
            now = blob((root / name).read_bytes()) if (root / name).is_file() else None
        if now != then:
            found.append(f"{name} {'changed' if now else 'is gone'}")
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_bytes())
    except ValueError as bad:
        raise BadInput(f"{shown(path)} is not JSON", why=str(bad), do="git restore it, or repeat the run") from bad
    if not isinstance(said, dict):
        raise BadInput(f"{shown(path)} is no result", why="it holds no JSON object", do="repeat the run")
    return said


def require(found: list[Row], *, gate: bool) -> None:
    """Refuse results that were edited or are missing, and with `gate` also a release's that are not fresh.

    Raises:
        CheckFailed: names each result, what is wrong, and the command that repeats it.
    """
    broken = (State.EDITED, State.MISSING)
    wrong = [
        row for row in found if row.state in broken or (gate and row.proof.release and row.state is not State.FRESH)
    ]
    if wrong:
        raise CheckFailed(
            f"{len(wrong)} of {len(found)} results do not stand",
            why="\n       ".join(f"{row.result}: {row.state.value}: {row.cells()[-1]}" for row in wrong),
            do="\n       ".join(row.proof.repeat for row in wrong),
        )
