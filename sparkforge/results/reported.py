"""Figures that others reported: `results/reported/`, one file a run. They are never mixed with our own.

A decode figure above the roof of its configuration is a measuring error, or its configuration is not what was said:
reading it fails, with the arithmetic.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.paths import RESULTS
from sparkforge.inputs.recipes import load
from sparkforge.serving.roofline import roofline

FOLDER = RESULTS / "reported"


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One figure.

    Attributes:
        test: ppN is prefill of N tokens, tgN is decoding N tokens, @dN is behind N tokens of context; or a latency.
        value: in `unit`.
        unit: tok/s or ms.
        spread: as reported, most often the tool's population deviation.
    """

    test: str
    value: float
    unit: str
    spread: float | None = None


class Reported(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What somebody else measured in one run.

    Attributes:
        source: where it stands.
        date: of the run or of the page, YYYY-MM-DD or YYYY-MM.
        engine: that served.
        machine: that it ran on.
        configuration: of the engine.
        samples: the figures.
        caveats: what makes them hard to compare.
        roof: words of `roofline` for its configuration; None where they are not known, or where it speculates.
    """

    source: str
    date: str
    engine: str
    machine: str
    configuration: str
    samples: tuple[Sample, ...]
    caveats: tuple[str, ...]
    roof: dict[str, str] | None = None

    @property
    def decode(self) -> float | None:
        """The highest decode figure at no added context, tokens a second."""
        found = [one.value for one in self.samples if one.test.startswith("tg") and "@" not in one.test]
        return max(found, default=None)

    @property
    def limit(self) -> float | None:
        """The roof of its configuration on one Spark with no context at all, tokens a second; predicted."""
        if self.roof is None:
            return None
        return roofline(layers=self.roof["layers"], kv=self.roof["kv"], context=0).roof


def read(path: Path) -> Reported:
    """One file.

    Raises:
        BadInput: it is not of this form.
        CheckFailed: its decode figure is above the roof.
    """
    found = load(path, Reported)
    if not found.samples or not found.caveats:
        raise BadInput(f"{path.name} has no samples or no caveats", why="a figure of others has both")
    if found.decode is not None and found.limit is not None and found.decode > found.limit:
        raise CheckFailed(
            f"{path.name}: {found.decode} tok/s is above the roof of its configuration",
            why=f"{found.roof} reads so many bytes a token that 273 GB/s allow {found.limit:.1f} tok/s",
            do="look for what was measured, or for another configuration",
        )
    return found


def every(folder: Path = FOLDER) -> list[Reported]:
    """All of them, oldest first."""
    return sorted((read(path) for path in folder.glob("*.yaml")), key=lambda one: one.date)
