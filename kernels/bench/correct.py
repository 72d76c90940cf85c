"""Is mxfp4_linear_decode right? Against float64 within the bound of its sums, and bit by bit against its CPU twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

GPT_OSS = {"qkv": (5120, 2880), "o": (2880, 4096), "lm_head": (201088, 2880)}
SMALL = ((1, 32), (5, 32), (3, 64), (7, 96), (33, 1024), (4097, 2880), (9, 8192))
TOKENS = range(1, 9)
POISON = 0x7FA5  # a NaN that the kernel never writes: its own is 0x7fff
GUARD = 64  # elements around the output that must stay as they are
_ROWS = 16384  # of W that are widened to float64 at once
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)

Kernel = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """Inputs of one call; bias may be None."""

    name: str
    x: torch.Tensor
    w: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None


@dataclass
class Tally:
    """What was compared."""

    calls: int = 0
    outputs: int = 0
    bitwise: int = 0
    worst: float = 0.0  # error over its bound; at most 1


def make(name: str, shape: tuple[int, int, int], generator: torch.Generator, device: str, *, bias: bool) -> Case:
    """Random inputs [M, N, K]: every code, scales around 1, activations of mixed size."""
    m, n, k = shape
    x = torch.randn(m, k, generator=generator) * torch.exp2(torch.randint(-6, 7, (m, k), generator=generator).float())
    w = torch.randint(0, 256, (n, k // 2), generator=generator, dtype=torch.uint8)
    scale = torch.randint(115, 131, (n, k // 32), generator=generator, dtype=torch.uint8)
    b = torch.randn(n, generator=generator).bfloat16().to(device) if bias else None
    return Case(name, x.bfloat16().to(device), w.to(device), scale.to(device), b)


def special(case: Case, code: int, generator: torch.Generator) -> Case:
    """The same case with one scale code in a quarter of its blocks."""
    hit = torch.rand(case.scale.shape, generator=generator) < 0.25  # noqa: PLR2004  a quarter
    hit.view(-1)[0] = True
    scale = torch.where(hit.to(case.scale.device), torch.full_like(case.scale, code), case.scale)
    return Case(f"{case.name} scale {code}", case.x, case.w, scale, case.bias)


def reference(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Results in float64 [M, N], and the sum of absolute products that an error bound is relative to."""
    x = case.x.double()
    table = torch.tensor(_E2M1, dtype=torch.float64, device=x.device)
    parts, sizes = [], []
    for first in range(0, case.w.shape[0], _ROWS):
        packed = case.w[first : first + _ROWS]
        codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1).long()
        exponent = case.scale[first : first + _ROWS].double() - 127
        factor = torch.where(exponent == 128, torch.nan, torch.exp2(exponent))  # noqa: PLR2004  255 is NaN
        w = table[codes] * factor.repeat_interleave(32, dim=1)
        parts.append(x @ w.T)
        sizes.append(x.abs() @ w.abs().T)
    y, size = torch.cat(parts, dim=1), torch.cat(sizes, dim=1)
    if case.bias is not None:
        y, size = y + case.bias.double(), size + case.bias.double().abs()
    return y, size


def bits(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """bf16 bits, or bytes, in NumPy."""
    plain = tensor.contiguous().cpu()
    return plain.view(torch.int16).numpy().view(np.uint16) if plain.dtype == torch.bfloat16 else plain.numpy()


def expected_bits(case: Case, twin: Callable[..., None]) -> np.ndarray[Any, Any]:
    """What the CPU twin computes, rows shared among threads."""
    x, w, scale = bits(case.x), bits(case.w), bits(case.scale)
    bias = None if case.bias is None else bits(case.bias)
    n = w.shape[0]
    out = np.empty((x.shape[0], n), np.uint16)

    def part(rows: slice) -> None:
        y = np.empty((x.shape[0], w[rows].shape[0]), np.uint16)
        twin(x, w[rows], scale[rows], None if bias is None else np.ascontiguousarray(bias[rows]), y)
        out[:, rows] = y

    with ThreadPoolExecutor() as pool:
        list(pool.map(part, [slice(first, min(first + 512, n)) for first in range(0, n, 512)]))
    return out


def guarded(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """A poisoned output inside a poisoned buffer: (buffer, out)."""
    m, n = case.x.shape[0], case.w.shape[0]
    buffer = torch.full((m * n + 2 * GUARD,), POISON, dtype=torch.int16, device=case.x.device)
    return buffer, buffer[GUARD : GUARD + m * n].view(torch.bfloat16).view(m, n)


def check(case: Case, kernel: Kernel, tally: Tally, twin: Callable[..., None] | None) -> list[str]:
    """Call the kernel once and compare; what is wrong, in words."""
    before = [bits(t).copy() for t in (case.x, case.scale)]
    buffer, out = guarded(case)
    kernel(case.x, case.w, case.scale, case.bias, out)
    got_bits = bits(out)
    wrong = []
    around = torch.cat([buffer[:GUARD], buffer[-GUARD:]])
    if (around != POISON).any():
        wrong.append("wrote outside of its output")
    if (got_bits == POISON).any():
        wrong.append(f"left {(got_bits == POISON).sum()} outputs unwritten")
    if any((a != bits(t)).any() for a, t in zip(before, (case.x, case.scale), strict=True)):
        wrong.append("changed an input")
    want, size = reference(case)
    got = out.double()
    regular = want.isfinite() & (size < 2.0**120)  # no partial sum overflows, so float64 decides
    bound = want.abs() * 2.0**-8 + size * (24 + case.x.shape[1] / 1024) * 2.0**-24 + 2.0**-133
    ratio = ((got - want).abs() / bound)[regular]
    if ratio.numel():
        tally.worst = max(tally.worst, float(ratio.nan_to_num(nan=torch.inf).max()))
        if not (ratio <= 1).all():
            wrong.append(f"off by {tally.worst:.2f} times the bound of its sums")
    if not got[want.isnan()].isnan().all():
        wrong.append("a NaN scale did not make its output NaN")
    tally.calls += 1
    tally.outputs += out.numel()
    if twin is not None:
        differ = int((expected_bits(case, twin) != got_bits).sum())
        tally.bitwise += out.numel()
        if differ:
            wrong.append(f"{differ} of {out.numel()} outputs differ in bits from the CPU twin")
    return [f"{case.name}, {tuple(case.x.shape)} by {tuple(case.w.shape)}: {says}" for says in wrong]


def cases(generator: torch.Generator, device: str, *, quick: bool) -> Iterator[tuple[Case, bool]]:
    """Every case, and whether the CPU twin should be asked as well (it is slow on the largest)."""
    for n, k in SMALL:
        for m in TOKENS:
            case = make("small", (m, n, k), generator, device, bias=m % 2 == 0)
            yield case, True
            for code in (0, 254, 255):
                yield special(case, code, generator), True
    for name, (n, k) in GPT_OSS.items():
        if quick and name == "lm_head":
            continue
        for m in TOKENS:
            for bias in (False, True):
                yield make(name, (m, n, k), generator, device, bias=bias), name != "lm_head" or m == 1


def same_alone_and_together(generator: torch.Generator, device: str, kernel: Kernel) -> list[str]:
    """A token's result does not depend on the tokens beside it, to the bit."""
    case = make("together", (8, 5120, 2880), generator, device, bias=True)
    _, together = guarded(case)
    kernel(case.x, case.w, case.scale, case.bias, together)
    for token in range(8):
        alone = Case("alone", case.x[token : token + 1], case.w, case.scale, case.bias)
        _, out = guarded(alone)
        kernel(alone.x, alone.w, alone.scale, alone.bias, out)
        if (bits(out)[0] != bits(together)[token]).any():
            return [f"token {token} of 8 differs from the same token alone"]
    return []
