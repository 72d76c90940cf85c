"""The list of proofs, and the state of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.paths import RESULTS, ROOT, shown
from sparkforge.inputs.recipes import load
from sparkforge.results.identity import Sources

LIST = RESULTS / "proofs.yaml"
KEY = "proof"
HEAD = ("proof", "what", "where it ran", "state", "why")


class Proof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the list; its key is the result file, relative to the checkout.

    Attributes:
        what: what it proves, in one line.
        where: the machine that it needs, and did run on.
        repeat: the command that makes the result anew.
        reads: sources whose change voids it, as `sources.Sources.found` takes them.
        holds: key of the result that must be true, with dots between keys; "" where the result has no such key.
    """

    what: str
    where: str
    repeat: str
    reads: tuple[str, ...]
    holds: str = ""


class Stamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a result says of its sources, under the key `proof`.

    Attributes:
        reads: identity of each source that it read, by name.
        trees: git tree ids of the upstreams that it read.
    """

    reads: dict[str, str]
    trees: dict[str, str]


class State(Enum):
    """What a result is worth now."""

    FRESH = "fresh"
    STALE = "stale"
    FAILED = "failed"
    UNSTAMPED = "unstamped"
    MISSING = "missing"


@dataclass(frozen=True)
class Row:
    """A proof and its state.

    Attributes:
        result: the result file, relative to the checkout.
        proof: its entry.
        state: what it is worth now.
        why: sources that differ, or what else is wrong; "" for a fresh one.
    """

    result: str
    proof: Proof
    state: State
    why: str

    def cells(self) -> tuple[str, ...]:
        """Under `HEAD`."""
        return (self.result, self.proof.what, self.proof.where, self.state.value, self.why)

    def plain(self) -> dict[str, Any]:
        """For `--json`."""
        return {"result": self.result, **msgspec.to_builtins(self.proof), "state": self.state.value, "why": self.why}


def listed(path: Path = LIST) -> dict[str, Proof]:
    """All proofs, by result file.

    Raises:
        BadInput: the list is not valid.
    """
    return load(path, dict[str, Proof])


def result(path: Path) -> dict[str, Any]:
    """A result file's content.

    Raises:
        BadInput: not there, or no JSON object.
    """
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError) as bad:
        raise BadInput(f"{shown(path)} is no result", why=str(bad)) from bad
    if not isinstance(said, dict):
        raise BadInput(f"{shown(path)} is no result", why="it is no JSON object")
    return said


def rows(sources: Sources, proofs: Mapping[str, Proof] | None = None, *, root: Path = ROOT) -> list[Row]:
    """State of every proof."""
    every = listed() if proofs is None else proofs
    return [Row(name, proof, *_state(sources, root / name, proof)) for name, proof in every.items()]


def _state(sources: Sources, path: Path, proof: Proof) -> tuple[State, str]:
    if not path.is_file():
        return State.MISSING, "there is no such result"
    said = result(path)
    if proof.holds and (found := _at(said, proof.holds)) is not True:
        return State.FAILED, f"{proof.holds} is {json.dumps(found)}"
    if KEY not in said:
        return State.UNSTAMPED, f"invoke proofs.stamp {path.name}"
    stamp = msgspec.convert(said[KEY], Stamp)
    try:
        now = sources.found(proof.reads)
    except BadInput as gone:
        return State.STALE, f"{gone.what}: {gone.why}"
    differing = sorted(name for name in now.keys() | stamp.reads.keys() if now.get(name) != stamp.reads.get(name))
    if not differing:
        return State.FRESH, ""
    return State.STALE, "; ".join(f"{name} {_how(name, stamp.reads, now)}" for name in differing)


def _how(name: str, then: Mapping[str, str], now: Mapping[str, str]) -> str:
    if name not in then:
        return "was not read then"
    return "changed" if name in now else "is gone or no longer listed"


def _at(said: Any, keys: str) -> Any:
    for key in keys.split("."):
        said = said.get(key) if isinstance(said, dict) else None
    return said


def require(found: list[Row]) -> None:
    """Refuse a list in which a proof is not fresh.

    Raises:
        CheckFailed: names each result, what changed, and the command that repeats it.
    """
    wrong = [row for row in found if row.state is not State.FRESH]
    if wrong:
        raise CheckFailed(
            f"{len(wrong)} of {len(found)} proofs do not stand",
            why="\n       ".join(f"{row.result}: {row.state.value}: {row.why}" for row in wrong),
            do="\n       ".join(row.proof.repeat for row in wrong) + "\n       then: invoke proofs.stamp RESULT",
        )
