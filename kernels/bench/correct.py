"""Are the dense kernels right? Against float64 within the bound of their sums, in every layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from weights import LAYOUTS, dequantized, lay

GPT_OSS = {"qkv": (5120, 2880), "o": (2880, 4096), "lm_head": (201088, 2880)}
SMALL = ((1, 32), (5, 32), (3, 64), (7, 96), (64, 2880), (33, 1024), (4097, 2880), (70, 4096), (9, 8192), (130, 160))
TOKENS = range(1, 9)
POISON = 0x7FA5  # a NaN that the kernel never writes: its own is 0x7fff
GUARD = 64  # elements around the output that must stay as they are
_ROWS = 16384  # of W that are widened to float64 at once

Kernel = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """Inputs of one call, weights in rows; bias may be None."""

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


def with_x(case: Case, value: float, generator: torch.Generator) -> Case:
    """The same case with an infinite, NaN or huge x here and there."""
    hit = torch.rand(case.x.shape, generator=generator) < 2 / case.x.shape[1]
    x = torch.where(hit.to(case.x.device), torch.full_like(case.x, value), case.x)
    return Case(f"{case.name} x {value}", x, case.w, case.scale, case.bias)


def reference(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Results in float64 [M, N], and the sum of absolute products that an error bound is relative to."""
    x = case.x.double()
    parts, sizes = [], []
    for first in range(0, case.w.shape[0], _ROWS):
        w = dequantized(case.w[first : first + _ROWS], case.scale[first : first + _ROWS])
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


def guarded(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """A poisoned output inside a poisoned buffer: (buffer, out)."""
    m, n = case.x.shape[0], case.w.shape[0]
    buffer = torch.full((m * n + 2 * GUARD,), POISON, dtype=torch.int16, device=case.x.device)
    return buffer, buffer[GUARD : GUARD + m * n].view(torch.bfloat16).view(m, n)


def differences(case: Case, out: torch.Tensor, tally: Tally) -> list[str]:
    """What is wrong with an output, in words."""
    want, size = reference(case)
    got = out.double()
    # No partial sum overflows where the sizes are small: float64 decides. Rounding to bf16 is 2^-8 of the result; a sum
    # on the tensor cores may truncate, so each of its additions counts 2^-23.
    regular = want.isfinite() & (size < 2.0**120)
    bound = want.abs() * 2.0**-8 + size * (24 + case.x.shape[1] / 256) * 2.0**-23 + 2.0**-133
    ratio = ((got - want).abs() / bound)[regular].nan_to_num(nan=torch.inf)
    wrong = []
    if ratio.numel():
        tally.worst = max(tally.worst, float(ratio.max()))
        if not (ratio <= 1).all():
            wrong.append(f"off by {float(ratio.max()):.2f} times the bound of its sums")
    if not got[want.isnan()].isnan().all():
        wrong.append("a NaN was lost")
    infinite = want.isinf()
    if not ((got == want) | got.isnan())[infinite].all():  # inf - inf on the way is NaN
        wrong.append("an infinity was lost")
    tally.calls += 1
    tally.outputs += out.numel()
    return wrong


def check(case: Case, kernels: Any, layout: str, tally: Tally) -> list[str]:
    """Call the kernel once in a layout and compare; what is wrong, in words."""
    before = bits(case.x).copy()
    buffer, out = guarded(case)
    w, scale, bias = lay(kernels, layout, case.w, case.scale, case.bias)
    kernels.mxfp4_linear_decode(case.x, w, scale, bias, out, layout=layout)
    got = bits(out)
    wrong = differences(case, out, tally)
    if (torch.cat([buffer[:GUARD], buffer[-GUARD:]]) != POISON).any():
        wrong.append("wrote outside of its output")
    if (got == POISON).any():
        wrong.append(f"left {(got == POISON).sum()} outputs unwritten")
    if (before != bits(case.x)).any():
        wrong.append("changed an input")
    return [f"{layout}: {case.name}, {tuple(case.x.shape)} by {tuple(case.w.shape)}: {says}" for says in wrong]


def cases(generator: torch.Generator, device: str, *, quick: bool) -> Iterator[Case]:
    """Every case."""
    for n, k in SMALL:
        for m in TOKENS:
            case = make("small", (m, n, k), generator, device, bias=m % 2 == 0)
            yield case
            for code in (0, 128, 254, 255):
                yield special(case, code, generator)
        for value in (float("inf"), float("nan"), 2.0**120, 2.0**-130):
            yield with_x(case, value, generator)
        yield Case("zero weights", case.x, torch.zeros_like(case.w), case.scale, case.bias)
    for name, (n, k) in GPT_OSS.items():
        if quick and name == "lm_head":
            continue
        for m in (1, 8) if name == "lm_head" else TOKENS:
            yield make(name, (m, n, k), generator, device, bias=m % 2 == 1)


def planted(generator: torch.Generator, kernels: Any) -> list[str]:
    """Faults that a comparison must see: exchanged scales, biases, halves of a byte, rows."""
    missed = []
    case = make("planted", (4, 128, 2880), generator, "cuda", bias=False)
    biases = torch.randn(128, generator=generator).bfloat16().cuda()
    case = Case(case.name, case.x, case.w, case.scale, biases)
    faults = {
        "exchanged scales": Case("", case.x, case.w, case.scale.roll(1, dims=1), case.bias),
        "exchanged biases": Case("", case.x, case.w, case.scale, biases.roll(1)),
        "exchanged halves": Case("", case.x, (case.w >> 4) | (case.w << 4), case.scale, case.bias),
        "exchanged rows": Case("", case.x, case.w.roll(8, dims=0), case.scale, case.bias),
    }
    for name, fault in faults.items():
        for layout in LAYOUTS:
            _, out = guarded(case)
            w, scale, bias = lay(kernels, layout, fault.w, fault.scale, fault.bias)
            kernels.mxfp4_linear_decode(fault.x, w, scale, bias, out, layout=layout)
            if not differences(case, out, Tally()):
                missed.append(f"{layout}: {name} went unseen")
    return missed


def same_alone_and_together(generator: torch.Generator, kernels: Any) -> list[str]:
    """A token's result does not depend on the tokens beside it, and 100 runs give the same bits."""
    wrong = []
    for layout in LAYOUTS:
        case = make("together", (8, 5120, 2880), generator, "cuda", bias=True)
        w, scale, bias = lay(kernels, layout, case.w, case.scale, case.bias)
        _, together = guarded(case)
        kernels.mxfp4_linear_decode(case.x, w, scale, bias, together, layout=layout)
        for token in range(8):
            alone = kernels.mxfp4_linear_decode(
                case.x[token : token + 1], w, scale, bias, torch.empty_like(together[:1]), layout=layout
            )
            if (bits(alone)[0] != bits(together)[token]).any():
                wrong.append(f"{layout}: token {token} of 8 differs from the same token alone")
        again = torch.empty_like(together)
        for _ in range(100):
            kernels.mxfp4_linear_decode(case.x, w, scale, bias, again, layout=layout)
            if not torch.equal(again.view(torch.int16), together.view(torch.int16)):
                wrong.append(f"{layout}: two runs differ in bits")
                break
    return wrong


def chained(generator: torch.Generator, kernels: Any) -> list[str]:
    """With overlap each kernel of a chain still sees what the one before wrote: 300 layers against the same without."""
    wrong = []
    for layout in LAYOUTS:
        case = make("chain", (8, 2880, 2880), generator, "cuda", bias=False)
        scale = torch.randint(119, 123, case.scale.shape, generator=generator, dtype=torch.uint8).cuda()
        w, laid, _ = lay(kernels, layout, case.w, scale, None)
        ends = []
        for overlap in (False, True):
            a, b = case.x.clone(), torch.empty_like(case.x)
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                for _ in range(150):
                    for x, y in ((a, b), (b, a)):
                        kernels.mxfp4_linear_decode(x, w, laid, None, y, layout=layout, overlap=overlap)
            for _ in range(10):
                a.copy_(case.x)
                captured.replay()
                torch.cuda.synchronize()
                ends.append(bits(a).copy())
        if any((one != ends[0]).any() for one in ends):
            wrong.append(f"{layout}: a chain with overlap differs from one without")
    return wrong


def strips(generator: torch.Generator, kernels: Any) -> list[str]:
    """More than eight tokens in our packing."""
    wrong, tally = [], Tally()
    for m in (9, 16, 21):
        case = make("strips", (m, 200, 2880), generator, "cuda", bias=True)
        _, out = guarded(case)
        kernels.mxfp4_linear_decode(case.x, kernels.pack(case.w, case.scale), None, case.bias, out, layout="packed")
        wrong += [f"{m} tokens: {says}" for says in differences(case, out, tally)]
    return wrong
