"""Check mxfp4_moe_decode and router_topk_decode on the CUDA device of this machine.

    python kernels/bench/check_experts.py --package FOLDER --json result.json

FOLDER is what `invoke kernels.build` made for this machine's architecture. Needs torch and apache-tvm-ffi. Exit status
0 when everything is right, else 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import experts as made
import loading
import torch
from router_cases import router_findings

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from sparkforge.results.provenance import Run  # noqa: E402  the path comes first

GB10_SHARED = 99 * 1024
SMALL = ((8, 128, 64), (8, 96, 32), (5, 256, 160))
GPT_OSS = ((8, 2880, 2880), (6, 2880, 1440))


class Kernel:
    """The kernel with scratch of its own, on packed experts."""

    def __init__(self, package: Any) -> None:
        self.package = package

    def scratch(self, m: int, k: int, inter: int) -> torch.Tensor:
        """Zeros, as the interface wants before the first use."""
        size = self.package.mxfp4_moe_scratch(m, k, inter)
        return torch.zeros(size, dtype=torch.uint8, device="cuda")

    def __call__(self, case: Case, packed: made.Packed, **also: Any) -> torch.Tensor:
        """Result in a poisoned output."""
        out = torch.full_like(case.x, torch.nan)
        scratch = self.scratch(*case.ids.shape, packed.sizes.inter)
        return self.into(case, packed, scratch, out, **also)

    def into(
        self, case: Case, packed: made.Packed, scratch: torch.Tensor, out: torch.Tensor, **also: Any
    ) -> torch.Tensor:
        """Result in `out`."""
        self.package.mxfp4_moe_decode(
            case.x, case.ids, case.routing, packed.w13, packed.s13, packed.w2, packed.s2, inter=packed.sizes.inter,
            layout=packed.layout, scratch=scratch, w13_bias=packed.b13, w2_bias=packed.b2, residual=case.residual,
            out=out, **also,
        )  # fmt: skip
        return out


class Case:
    """Tokens and where they go."""

    def __init__(self, g: torch.Generator, m: int, hidden: int, experts: int, k: int, *, shared: bool = False) -> None:
        self.x = torch.randn(m, hidden, device="cuda", generator=g).bfloat16()
        rows = [torch.randperm(experts, device="cuda", generator=g)[:k] for _ in range(m)]
        self.ids = torch.stack(rows[:1] * m if shared else rows).int()
        self.routing = torch.softmax(torch.randn(m, k, device="cuda", generator=g), -1)
        self.residual = torch.randn(m, hidden, device="cuda", generator=g).bfloat16() if m % 2 else None


def plain(g: torch.Generator, kernel: Kernel) -> Iterator[str]:
    """Every number of tokens, shared and distinct experts, both layouts, both shapes of the kernel, biases or none."""
    for sizes in SMALL + GPT_OSS:
        for bias in (True, False):
            checkpoint = made.random_experts(g, *sizes, "cuda", bias=bias)
            for packed in (made.pack(checkpoint, "marlin"), made.pack(checkpoint, "cutlass")):
                for m in range(1, 9):
                    for shared, k in ((False, 4), (True, 4), (False, 1 + m % 5)):
                        case = Case(g, m, sizes[1], sizes[0], k, shared=shared)
                        want, size = made.mixture(case.x, case.ids, case.routing, checkpoint, case.residual)
                        for limit in (0, GB10_SHARED):
                            got = kernel(case, packed, shared_limit=limit, overlap=bool(m % 2))
                            if bad := made.wrong(got, want, size):
                                yield f"{sizes} {packed.layout} M {m} k {k} shared {shared} limit {limit}: {bad} wrong"


def edges(g: torch.Generator, kernel: Kernel) -> Iterator[str]:
    """Scales 0, 254, 255; zero weights; x that is huge, tiny, zero, infinite, NaN; ids that repeat or point nowhere."""
    sizes = (6, 128, 96)
    for name, change in CHANGES.items():
        checkpoint = made.random_experts(g, *sizes, "cuda")
        case = Case(g, 5, sizes[1], sizes[0], 3)
        change(checkpoint, case)
        want, size = made.mixture(case.x, case.ids, case.routing, checkpoint, case.residual)
        for layout in ("marlin", "cutlass"):
            for limit in (0, GB10_SHARED):
                got = kernel(case, made.pack(checkpoint, layout), shared_limit=limit)
                if bad := made.wrong(got, want, size):
                    yield f"{name} {layout} limit {limit}: {bad} wrong"


def _change(part: str, value: float, where: tuple[Any, ...]) -> Callable[[made.Experts, Case], None]:
    def change(checkpoint: made.Experts, case: Case) -> None:
        tensor = getattr(case if hasattr(case, part) else checkpoint, part)
        tensor[where] = value

    return change


def _small_code(e: made.Experts) -> None:
    """0.5 * 2^127 is finite, and so is its product with act; sums of such would not be."""
    e.q2[3, 7, 32:64] = 0
    e.q2[3, 7, 40] = 1
    e.s2[3, 7, 1] = 254


def _alone(case: Case, value: float) -> None:
    case.x[2] = 0.0
    case.x[2, 17] = value


ALL = (slice(None),)
CHANGES: dict[str, Callable[[made.Experts, Case], None]] = {
    **{f"w13 scale {s} in a row": _change("s13", s, (2, 5)) for s in (0, 127, 128, 200, 255)},
    **{f"w2 scale {s} in a block": _change("s2", s, (3, 7, 1)) for s in (0, 127, 128, 200, 255)},
    "w13 scale 254 in a block": _change("s13", 254, (2, 5, 1)),
    "w2 scale 254 on one small code": lambda e, _: _small_code(e),
    "w13 scale 0 everywhere": _change("s13", 0, ALL),
    "w2 scale 0 everywhere": _change("s2", 0, ALL),
    "zero weights of gate and up": _change("q13", 0, ALL),
    "zero weights of down": _change("q2", 8, ALL),
    "x zero": _change("x", 0.0, ALL),
    "x huge in one token": _change("x", 2.0**100, (1, 17)),
    "x 2^27, alone in its token": lambda _, case: _alone(case, 2.0**27),
    "x 2^100, alone in its token": lambda _, case: _alone(case, 2.0**100),
    "x tiny in one token": _change("x", 2.0**-90, (3,)),
    "x infinite": _change("x", float("inf"), (0, 3)),
    "x NaN": _change("x", float("nan"), (4, 100)),
    "an id twice": _change("ids", 2, (slice(None), slice(0, 2))),
    "ids that point nowhere": _change("ids", -1, (slice(1, 3),)),
    "an id past the end": _change("ids", 6, (0, 1)),
    "no expert at all": _change("ids", -1, ALL),
}


def faults(g: torch.Generator, kernel: Kernel) -> Iterator[str]:
    """What a wrong packing would be: each must be seen."""
    checkpoint = made.random_experts(g, 6, 2880, 2880, "cuda")
    case = Case(g, 4, 2880, 6, 4)
    want, size = made.mixture(case.x, case.ids, case.routing, checkpoint, case.residual)
    for layout in ("marlin", "cutlass"):
        p = made.pack(checkpoint, layout)
        planted = {
            "scales of neighbouring blocks exchanged": replace(p, s13=p.s13.roll(1, 1)),
            "w2's scales exchanged": replace(p, s2=p.s2.roll(1, 2)),
            "no bias of gate and up": replace(p, b13=None),
            "bias of down moved": replace(p, b2=p.b2.roll(1, 1) if p.b2 is not None else None),
            "experts exchanged": replace(p, w13=p.w13.roll(1, 0)),
            "gate and up exchanged": made.pack(_swap(checkpoint), layout),
        }
        for name, wrong in planted.items():
            if not made.wrong(kernel(case, wrong), want, size):
                yield f"{layout}: {name}: not seen"
    marlin, cutlass = made.pack(checkpoint, "marlin"), made.pack(checkpoint, "cutlass")
    rows = torch.zeros_like(marlin.w13)
    size_of_one = cutlass.w13[0].numel()
    rows[:, :size_of_one] = cutlass.w13.flatten(1)
    if not made.wrong(kernel(case, replace(marlin, w13=rows)), want, size):
        yield "rows in place of Marlin's tiles: not seen"


def _swap(e: made.Experts) -> made.Experts:
    """Up where gate is, and gate where up is."""

    def flip(t: Any) -> Any:
        return None if t is None else t.unflatten(1, (-1, 2)).flip(2).flatten(1, 2).contiguous()

    return replace(e, q13=flip(e.q13), s13=flip(e.s13), b13=flip(e.b13))


def same_bits(g: torch.Generator, kernel: Kernel) -> Iterator[str]:
    """100 calls, 100 replays on new inputs, a side stream: each equals a lone call to the bit, on used scratch."""
    for layout in ("marlin", "cutlass"):
        for m in (1, 8):
            packed = made.pack(made.random_experts(g, 40, 2880, 2880, "cuda"), layout)
            case = Case(g, m, 2880, 40, 4)
            want = kernel(case, packed)
            scratch, out = kernel.scratch(m, 4, 2880), torch.empty_like(want)
            for _ in range(100):
                out.fill_(torch.nan)
                if not torch.equal(kernel.into(case, packed, scratch, out, overlap=True), want):
                    yield f"{layout} M {m}: another result in 100 calls"
                    break
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                kernel.into(case, packed, scratch, out, overlap=True)
            for _ in range(100):
                new = Case(g, m, 2880, 40, 4)
                case.x.copy_(new.x)
                case.ids.copy_(new.ids)
                out.fill_(torch.nan)
                captured.replay()
                if not torch.equal(out, kernel(case, packed)):
                    yield f"{layout} M {m}: a replay gives another result"
                    break
            side, late = torch.cuda.Stream(), torch.zeros_like(case.x)
            want, case.x = kernel(case, packed), late.copy_(case.x)
            keep = late.clone()
            late.zero_()
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                torch.cuda._sleep(100_000_000)  # noqa: SLF001  torch offers no other way
                late.copy_(keep)
                kernel.into(case, packed, scratch, out)
            if side.query():
                yield f"{layout} M {m}: the call waited for the device"
            side.synchronize()
            if not torch.equal(out, want):
                yield f"{layout} M {m}: another result on a side stream"


CHECKS = {"plain": plain, "edges": edges, "planted faults": faults, "same bits": same_bits, "router": router_findings}


def main() -> int:
    """Run what the words ask for."""
    run = Run(__file__)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--package", type=Path, required=True, help="folder that holds sparkforge_kernels/")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seed", type=int, help="repeat a run; else a fresh one")
    parser.add_argument("--only", choices=tuple(CHECKS), help="one of the checks")
    words = parser.parse_args()
    seed = words.seed if words.seed is not None else int.from_bytes(os.urandom(6), "little")
    package = loading.package(words.package)
    kernel, begun = Kernel(package), time.monotonic()
    result: dict[str, Any] = {"seed": seed} | loading.facts(package)
    findings: list[str] = []
    for name, look in CHECKS.items():
        if words.only not in (None, name):
            continue
        found = list(look(torch.Generator("cuda").manual_seed(seed), kernel))
        torch.cuda.synchronize()
        print(f"{name}: {'; '.join(found[:20]) or 'right'} ({time.monotonic() - begun:.1f} s)", flush=True)
        result[name] = found or "right"
        findings += found
    result |= {"seconds": time.monotonic() - begun, "passed": not findings}
    run.read(made.sources())
    if words.json:
        run.write(words.json, result)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
