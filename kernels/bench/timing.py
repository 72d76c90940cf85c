"""How fast is mxfp4_linear_decode? CUDA graphs of many calls, each on other weights than the cache holds."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from correct import GPT_OSS, TOKENS

_SAMPLES = 25
_COPY_BYTES = 1 << 30


@dataclass(frozen=True)
class Timed:
    """One shape: microseconds a call of every sample, and bytes that a call must move."""

    name: str
    m: int
    n: int
    k: int
    bytes: int
    microseconds: list[float]

    @property
    def median(self) -> float:
        """Microseconds a call."""
        return statistics.median(self.microseconds)

    @property
    def gigabytes(self) -> float:
        """GB/s (10^9) of the median."""
        return self.bytes / self.median / 1e3

    def as_json(self) -> dict[str, Any]:
        """With what is derived."""
        return asdict(self) | {"median_us": self.median, "gb_per_s": self.gigabytes}


def moved(m: int, n: int, k: int) -> int:
    """Bytes of codes, scales, x, bias and y; x is counted once."""
    return n * k // 2 + n * k // 32 + 2 * (m * k + n + m * n)


def time_all(kernel: Callable[..., Any]) -> list[Timed]:
    """Every shape and number of tokens."""
    return [time_one(kernel, name, (m, n, k)) for name, (n, k) in GPT_OSS.items() for m in TOKENS]


def time_one(kernel: Callable[..., Any], name: str, shape: tuple[int, int, int]) -> Timed:
    """One shape; the weights rotate through four times the L2 cache, so that no call finds its own there."""
    m, n, k = shape
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    copies = max(3, -(-4 * cache // (n * k // 2)))
    w = torch.randint(0, 256, (copies, n, k // 2), dtype=torch.uint8, device="cuda")
    scale = torch.randint(115, 131, (copies, n, k // 32), dtype=torch.uint8, device="cuda")
    x = torch.randn(copies, m, k, device="cuda").bfloat16()
    bias = torch.randn(copies, n, device="cuda").bfloat16()
    out = torch.empty(copies, m, n, dtype=torch.bfloat16, device="cuda")
    kernel(x[0], w[0], scale[0], bias[0], out[0])
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for i in range(copies):
            kernel(x[i], w[i], scale[i], bias[i], out[i])
    samples = _samples(captured.replay, copies)
    return Timed(name, m, n, k, moved(m, n, k), samples)


def copy_bandwidth() -> Timed:
    """What the memory gives: a device-to-device copy, bytes read and written both counted."""
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return Timed("copy", 0, 0, 0, 2 * _COPY_BYTES, _samples(lambda: target.copy_(source), 1))


def _samples(work: Callable[[], Any], calls: int) -> list[float]:
    for _ in range(5):
        work()
    taken = []
    for _ in range(_SAMPLES):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) * 1e3 / calls)
    return taken


def table(timed: list[Timed], copy: Timed) -> str:
    """For people."""
    lines = [f"copy: {copy.gigabytes:.0f} GB/s", "", f"{'layer':<8}{'M':>3}{'us':>9}{'GB/s':>8}{'of copy':>9}"]
    for one in timed:
        share = one.gigabytes / copy.gigabytes
        lines.append(f"{one.name:<8}{one.m:>3}{one.median:>9.2f}{one.gigabytes:>8.0f}{share:>8.0%}")
    return "\n".join(lines)
