"""What a person sees while we work: steps, progress and tables.

Tables go to standard output, the rest to standard error, so that a pipe carries results alone. Colours and moving
bars are for terminals only, and NO_COLOR (https://no-color.org) turns colours off. `rich` is imported when it draws.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

WIDTH = 100  # columns of a table, in a pipe too; a narrower terminal gets a narrower table

_STYLES = {
    "green": ("cached", "done", "fresh", "loads", "ok", "on", "passed", "proved", "sound"),
    "red": ("edited", "error", "failed", "missing", "not proved", "refused", "FAILED"),
    "yellow": ("plan", "skipped", "stale", "unbound", "warning"),
}
_STYLE_OF = {word: style for style, words in _STYLES.items() for word in words}
_LOG_SECONDS = 10.0  # between two lines of progress if there is no terminal

_quiet = False


def quiet(on: bool = True) -> None:
    """Say nothing to people but warnings, for `--json`."""
    global _quiet  # noqa: PLW0603  one process, one terminal
    _quiet = on


def say(text: str = "") -> None:
    """Print a line for people on standard error."""
    if not _quiet:
        print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Print a line that asks for attention, even when quiet."""
    print(f"{_painted('warning')}: {text}", file=sys.stderr, flush=True)


def step(mark: str, text: str) -> None:
    """Print a line about a step, with a mark such as `cached` or `plan` in front."""
    if not _quiet:
        say(f"[{_painted(mark)}] {text}")


def mib(size: float) -> str:
    """Bytes in kB, MB or GB (powers of ten, as for disks and downloads)."""
    if size >= 1e9:  # noqa: PLR2004  a GB
        return f"{size / 1e9:.2f} GB"
    if size >= 1e6:  # noqa: PLR2004  a MB
        return f"{size / 1e6:.1f} MB"
    return f"{size / 1e3:.1f} kB"


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Say what begins, and when it has ended how long it took."""
    say(f"  {what} ...")
    begun = time.monotonic()
    yield
    say(f"  {what}: {time.monotonic() - begun:.1f} s")


@dataclass
class Meter:
    """Progress of a download of `total` bytes, as a context: a bar on a terminal, else a line every ten seconds."""

    what: str
    total: int
    done: int = 0
    _begun: float = field(default_factory=time.monotonic)
    _shown: float = field(default_factory=time.monotonic)
    _bar: Progress | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not _quiet:
            from rich import progress  # noqa: PLC0415  as in `table`
            from rich.console import Console  # noqa: PLC0415

            shows = (progress.TextColumn("  {task.description}"), progress.BarColumn(), progress.DownloadColumn())
            self._bar = progress.Progress(*shows, console=Console(stderr=True), transient=True)
            self._bar.add_task(self.what, total=self.total or None)
            self._bar.start()
        return self

    def add(self, size: int) -> None:
        """Count bytes; any thread may call it."""
        self.done += size
        now = time.monotonic()
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], size)
        elif now - self._shown >= _LOG_SECONDS:
            self._shown = now
            say(f"  {self.what}: {mib(self.done)} of {mib(self.total)}, {mib(self.done / (now - self._begun))}/s")

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self.done:
            say(f"  {self.what}: {mib(self.done)} in {time.monotonic() - self._begun:.1f} s")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, width: int = WIDTH) -> str:
    """A table for standard output, at most `width` columns wide; cells that do not fit are wrapped.

    Args:
        columns: their headings; all empty for a table without a heading.
        rows: one cell a column; words such as `passed` or `failed` are coloured on a terminal.
        width: upper bound in columns; a terminal's own width counts where it is smaller.
    """
    from rich.console import Console  # noqa: PLC0415  a build without a table does not pay for it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(columns), header_style="bold")
    for name in columns:
        drawn.add_column(Text(name), overflow="fold")
    for row in rows:
        cells = [str(cell) for cell in row]
        drawn.add_row(*(Text(cell, style=_STYLE_OF.get(cell, "")) for cell in cells))
    out = io.StringIO()
    fits = min(width, shutil.get_terminal_size((width, 24)).columns) if sys.stdout.isatty() else width
    Console(file=out, width=fits, force_terminal=_colours(sys.stdout), highlight=False).print(drawn)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _colours(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")


def _painted(word: str) -> str:
    if not _colours(sys.stderr):
        return word
    from rich.style import Style  # noqa: PLC0415  as in `table`

    return Style.parse(_STYLE_OF.get(word.strip(), "bold")).render(word)
