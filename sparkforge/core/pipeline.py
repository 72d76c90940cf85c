"""A build as a chain of steps; each says what it does, why it is or is not cached, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from sparkforge.core import console
from sparkforge.core.hashing import key_of
from sparkforge.core.store import Store, write_file

T = TypeVar("T")


class Record(msgspec.Struct, frozen=True):
    """Hashes of what a step read the last time, by name."""

    inputs: dict[str, str]


class Ran(msgspec.Struct, frozen=True):
    """A step that ran, for the manifest: whether and why it was cached, and its wall time."""

    name: str
    cached: bool
    why: str
    seconds: float


@dataclass
class Pipeline:
    """Runs steps in order and records what each read, apart for each `line`; a dry one only says what it would do."""

    store: Store
    line: str
    dry: bool = False
    ran: list[Ran] = field(default_factory=list)

    def step(
        self,
        name: str,
        *,
        inputs: Mapping[str, str | None],
        look: Callable[[], T | None],
        make: Callable[[], T],
        shows: Callable[[T], str] = lambda _: "",
    ) -> T | None:
        """Take a step's result from the store, or make it.

        Args:
            name: shown to people.
            inputs: hash of each thing that the step reads, by name; None if an earlier step was only planned.
            look: finds the finished result, or None.
            make: makes it.
            shows: describes the result in a few words.

        Returns:
            The result; None if a dry run would have to make it.
        """
        begun = time.monotonic()
        known = None if None in inputs.values() else look()
        if known is not None:
            why = "cached: its inputs did not change"
            self._said(name, cached=True, why=why, words=shows(known), seconds=time.monotonic() - begun)
            self._remember(name, inputs)
            return known
        why = self._why(name, inputs)
        if self.dry:
            self.ran.append(Ran(name, cached=False, why=why, seconds=0.0))
            console.step("plan", f"{name}: {why}")
            return None
        console.step("....", f"{name}: {why}")
        made = make()
        self._said(name, cached=False, why=why, words=shows(made), seconds=time.monotonic() - begun)
        self._remember(name, inputs)
        return made

    def _why(self, name: str, inputs: Mapping[str, str | None]) -> str:
        waits = sorted(item for item, value in inputs.items() if value is None)
        if waits:
            return f"follows {', '.join(waits)}"
        path = self._path(name)
        if not path.is_file():
            return "not in the store yet"
        last = msgspec.json.decode(path.read_bytes(), type=Record).inputs
        changed = sorted(item for item in inputs.keys() | last.keys() if inputs.get(item) != last.get(item))
        return f"changed: {', '.join(changed)}" if changed else "its result is gone"

    def _remember(self, name: str, inputs: Mapping[str, str | None]) -> None:
        kept = msgspec.json.encode(Record({item: value or "" for item, value in inputs.items()}))
        path = self._path(name)
        if not self.dry and not (path.is_file() and path.read_bytes() == kept):
            write_file(path, kept)

    def _path(self, name: str) -> Path:
        return self.store.root / "last" / f"{key_of(self.line, name)[:24]}.json"

    def _said(self, name: str, *, cached: bool, why: str, words: str, seconds: float) -> None:
        self.ran.append(Ran(name, cached, why, round(seconds, 3)))
        mark = "cached" if cached else " done "
        console.step(mark, f"{name}{': ' + words if words else ''} ({seconds:.1f} s)")
