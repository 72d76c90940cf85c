"""What a person sees while we work: steps with what, why and how long; progress; tables."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

_quiet = False


def quiet(on: bool = True) -> None:
    """Keep standard output for `--json`: everything for people goes nowhere."""
    global _quiet  # noqa: PLW0603  one process, one terminal
    _quiet = on


def say(text: str = "") -> None:
    """One line for people, on standard error, so that standard output carries results alone."""
    if not _quiet:
        print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """A line that asks for attention; shown even when quiet."""
    print(f"warning: {text}", file=sys.stderr, flush=True)


def mib(size: float) -> str:
    """Bytes for people, in MB or GB (powers of ten, as disks and downloads are sold)."""
    if size >= 1e9:  # noqa: PLR2004  a GB
        return f"{size / 1e9:.2f} GB"
    if size >= 1e6:  # noqa: PLR2004  a MB
        return f"{size / 1e6:.1f} MB"
    return f"{size / 1e3:.1f} kB"


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Say what begins, and how long it took when it has ended."""
    say(f"  {what} ...")
    begun = time.monotonic()
    yield
    say(f"  {what}: {time.monotonic() - begun:.1f} s")


@dataclass
class Meter:
    """Bytes done of bytes to do, shown on one line of a terminal, or every few seconds in a log."""

    what: str
    total: int
    done: int = 0
    _begun: float = 0.0
    _shown: float = 0.0

    def __post_init__(self) -> None:
        self._begun = time.monotonic()

    def add(self, size: int) -> None:
        """Count bytes; shows at most four times a second on a terminal, every ten seconds elsewhere."""
        self.done += size
        now = time.monotonic()
        terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        if _quiet or now - self._shown < (0.25 if terminal else 10.0):
            return
        self._shown = now
        rate = self.done / max(now - self._begun, 0.001)
        line = f"  {self.what}: {mib(self.done)} of {mib(self.total)}, {mib(rate)}/s"
        print(f"\r{line:<76}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Say the total and the rate."""
        if sys.stderr.isatty() and self._shown and not _quiet:
            print(file=sys.stderr)
        seconds = time.monotonic() - self._begun
        if self.done:
            say(f"  {self.what}: {mib(self.done)} in {seconds:.1f} s")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Left-aligned columns, two blanks apart, for standard output."""
    lines = [tuple(str(cell) for cell in row) for row in (head, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)
