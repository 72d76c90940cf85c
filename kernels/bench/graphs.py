"""Timing by replays of a captured graph: of many calls, each on other weights than the caches hold."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

WARM_UP = 5
REPLAYS = 100


@dataclass(frozen=True)
class Work:
    """Something to time.

    Attributes:
        name: of the layer or the step, as qkv.
        variant: of the kernel and how it is launched, as "packed, PDL".
        m: tokens.
        bytes: that one call must move, weights and scales alone.
        calls: one call each, on its own weights; they follow each other in the graph.
    """

    name: str
    variant: str
    m: int
    bytes: int
    calls: list[Callable[[], Any]]


@dataclass
class Timed:
    """Microseconds a call, of every replay."""

    name: str
    variant: str
    m: int
    bytes: int
    microseconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Microseconds a call."""
        return statistics.median(self.microseconds)

    @property
    def gigabytes(self) -> float:
        """GB/s (10^9) of the median."""
        return self.bytes / self.median / 1e3

    def as_json(self) -> dict[str, Any]:
        """With what is derived; samples to a nanosecond."""
        samples = [round(one, 3) for one in self.microseconds]
        return asdict(self) | {"microseconds": samples, "median_us": self.median, "gb_per_s": self.gigabytes}


def timed(work: Work, replays: int = REPLAYS) -> Timed:
    """Capture the calls, replay the graph, time each replay with events."""
    captured = torch.cuda.CUDAGraph()
    work.calls[0]()
    torch.cuda.synchronize()
    with torch.cuda.graph(captured):
        for call in work.calls:
            call()
    for _ in range(WARM_UP):
        captured.replay()
    torch.cuda.synchronize()
    result = Timed(work.name, work.variant, work.m, work.bytes)
    for _ in range(replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        captured.replay()
        end.record()
        end.synchronize()
        result.microseconds.append(begin.elapsed_time(end) * 1e3 / len(work.calls))
    return result
