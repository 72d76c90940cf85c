"""Time mxfp4_moe_decode and router_topk_decode on 36 layers of gpt-oss-120b's size, beside this run's ceilings.

    python kernels/bench/measure_experts.py --package FOLDER --ceilings ceilings.so --tiles tiles.so --json result.json

ceilings.so and tiles.so are kernels/bench/ceilings.cu and tiles.cu, compiled with nvcc -shared for this GPU. Layers
follow each other in one captured graph, each on its own weights (15 GB in all), so that no cache holds them; medians of
100 replays. Bytes are those of weights and scales that a result depends on: padding counts for nothing. `--marlin
_moe_C.abi3.so` times vLLM's own kernels too, from its published wheel.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import experts as made
import loading
import torch
from graphs import Timed, Work, timed
from limits import Limits
from marlin_moe import MarlinMoe

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from sparkforge.results.provenance import Run  # noqa: E402  the path comes first

LAYERS, EXPERTS, HIDDEN, TOPK = 36, 32, 2880, 4
GB10_SHARED = 99 * 1024
TOKENS = (1, 2, 4, 8)


def random_packed(layout: str, inter: int) -> made.Packed:
    """Experts of random bytes: as heavy as real ones, and quickly made."""
    sizes = (made.marlin_sizes if layout == "marlin" else made.cutlass_sizes)(EXPERTS, HIDDEN, inter)
    h, i = sizes.hidden_stored, sizes.inter_stored

    def some(*shape: int, low: int = 0, high: int = 256) -> torch.Tensor:
        return torch.randint(low, high, shape, dtype=torch.uint8, device="cuda")

    def scales(rows: int, k: int) -> torch.Tensor:
        return some(EXPERTS, *((k // 32, rows) if layout == "marlin" else (rows, k // 32)), low=110, high=118)

    def bias(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda").bfloat16()

    w13, w2 = some(EXPERTS, i * h), some(EXPERTS, h * i // 2)
    return made.Packed(
        layout, sizes, w13, scales(2 * i, h), bias(EXPERTS, 2 * i), w2, scales(h, i), bias(EXPERTS, h)
    )  # fmt: skip


def moe_bytes(experts: int, inter: int) -> int:
    """Codes and scales of so many experts."""
    return experts * 3 * HIDDEN * inter * 17 // 32


class Layers:
    """36 layers in one layout, and calls on them."""

    def __init__(self, package: Any, layout: str, inter: int) -> None:
        self.package, self.layout, self.inter = package, layout, inter
        self.packed = [random_packed(layout, inter) for _ in range(LAYERS)]

    def works(self) -> Iterator[Work]:
        """Distinct experts for all tokens, the same for all, with and without overlap, and the shape for a GB10."""
        name = f"experts, inter {self.inter}, {self.layout}"
        for m in TOKENS:
            for overlap in (True, False):
                yield self.work(name, m, overlap=overlap)
            yield self.work(name, m, overlap=True, limit=GB10_SHARED)
            if m > 1:
                yield self.work(name, m, overlap=True, shared=True)

    def work(self, name: str, m: int, *, overlap: bool, limit: int = 0, shared: bool = False) -> Work:
        """One call a layer."""
        ids = [self.ids(m, shared=shared) for _ in self.packed]
        weights = torch.full((m, TOPK), 1 / TOPK, device="cuda")
        calls = [
            self.call(p, m, one, weights, overlap=overlap, limit=limit) for p, one in zip(self.packed, ids, strict=True)
        ]
        words = ["PDL" if overlap else "plain", "same experts" if shared else "distinct experts"]
        words += ["99 KiB of shared memory"] if limit else []
        return Work(name, ", ".join(words), m, moe_bytes(TOPK if shared else m * TOPK, self.inter), calls)

    def ids(self, m: int, *, shared: bool) -> torch.Tensor:
        """Experts of m tokens."""
        chosen = torch.randperm(EXPERTS, device="cuda").int()
        return chosen[:TOPK].repeat(m, 1) if shared else chosen[: m * TOPK].view(m, TOPK).contiguous()

    def call(
        self, p: made.Packed, m: int, ids: Any, weights: Any, *, overlap: bool, limit: int = 0, x: Any = None
    ) -> Any:
        """One layer."""
        x = torch.randn(m, HIDDEN, device="cuda").bfloat16() if x is None else x
        size = self.package.mxfp4_moe_scratch(m, TOPK, self.inter)
        scratch = torch.zeros(size, dtype=torch.uint8, device="cuda")
        return partial(
            self.package.mxfp4_moe_decode, x, ids, weights, p.w13, p.s13, p.w2, p.s2, inter=self.inter, layout=p.layout,
            scratch=scratch, w13_bias=p.b13, w2_bias=p.b2, out=torch.empty_like(x), overlap=overlap, shared_limit=limit,
        )  # fmt: skip


class Routers:
    """36 routers of 128 experts, alone and before the experts of a layer (then of 32)."""

    def __init__(self, package: Any) -> None:
        self.package = package
        self.w = [torch.randn(128, HIDDEN, device="cuda").bfloat16() for _ in range(LAYERS)]
        self.gamma = torch.ones(HIDDEN, device="cuda").bfloat16()

    def one(self, layer: int, x: Any, chosen: tuple[Any, Any], normed: Any, experts: int) -> Callable[[], None]:
        """One call."""
        scratch = torch.zeros(self.package.router_topk_scratch(8, experts), dtype=torch.uint8, device="cuda")
        return partial(
            self.package.router_topk_decode, x, self.w[layer][:experts], *chosen, scratch=scratch,
            bias=torch.zeros(experts, device="cuda").bfloat16(), norm_weight=self.gamma, normed=normed, overlap=True,
        )  # fmt: skip

    def works(self, layers: Layers) -> Iterator[Work]:
        """The router, then router and experts together."""
        for m in TOKENS:
            x = torch.randn(m, HIDDEN, device="cuda").bfloat16()
            ids, weights = torch.zeros(m, TOPK, dtype=torch.int32, device="cuda"), torch.zeros(m, TOPK, device="cuda")
            normed = torch.empty_like(x)
            calls = [self.one(i, x, (ids, weights), normed, 128) for i in range(LAYERS)]
            yield Work("router, 128 experts", "PDL", m, 2 * 128 * HIDDEN, calls)
            if m > 1:
                continue  # chosen by the router, experts of several tokens would coincide by chance
            both = []
            for i, p in enumerate(layers.packed):
                router = self.one(i, x, (ids, weights), normed, EXPERTS)
                moe = layers.call(p, m, ids, weights, overlap=True, x=normed)
                both.append(lambda router=router, moe=moe: (router(), moe()))
            size = 2 * EXPERTS * HIDDEN + moe_bytes(TOPK, layers.inter)
            yield Work("router of 32 and experts, marlin", "PDL", m, size, both)


def tile_reads(library: ctypes.CDLL, blocks: int) -> Iterator[Timed]:
    """Marlin's tiles of 32 experts, read and not computed: the codes of gate and up, of down."""
    for name, rows, k_stored, tiles in (("gate and up", 5888, 3072, 90), ("down", 3072, 2944, 45)):
        line, expert = rows * 8, rows * k_stored // 2
        data = [torch.randint(0, 256, (EXPERTS * expert,), dtype=torch.uint8, device="cuda") for _ in range(2)]
        sink = torch.zeros(4, dtype=torch.int32, device="cuda")

        def call(
            codes: torch.Tensor, line: int = line, expert: int = expert, tiles: int = tiles, sink: Any = sink
        ) -> None:
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            pointers = ctypes.c_void_p(codes.data_ptr()), ctypes.c_void_p(sink.data_ptr())
            sizes = ctypes.c_int64(expert), EXPERTS, ctypes.c_int64(line), tiles, 45
            if library.tiles(pointers[0], *sizes, pointers[1], blocks, stream):
                raise RuntimeError("CUDA refused to read tiles")

        size = EXPERTS * tiles * 512 * 180
        yield timed(
            Work(f"Marlin's tiles read alone, {name}", "no arithmetic", 8, size, [partial(call, d) for d in data * 4])
        )


def main() -> int:
    """Measure, print a table, write every sample."""
    run = Run(__file__)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for word in ("package", "ceilings", "tiles", "json"):
        parser.add_argument(f"--{word}", type=Path, required=True)
    parser.add_argument("--marlin", type=Path, help="_moe_C.abi3.so of vLLM's published wheel")
    words = parser.parse_args()
    package = loading.package(words.package)
    result: dict[str, Any] = loading.facts(package)
    limits = Limits(ctypes.CDLL(str(words.ceilings.resolve())))
    read = limits.read("1 GiB", [1 << 30], overlap=False, calls=1)
    ceilings = [read, limits.copy(), limits.gap(overlap=True), limits.gap(overlap=False)]
    del limits
    rows = list(tile_reads(ctypes.CDLL(str(words.tiles.resolve())), result["multiprocessors"]))
    for layout, inter in (("marlin", 2880), ("cutlass", 2880), ("marlin", 1440)):
        layers = Layers(package, layout, inter)
        rows += [timed(work) for work in layers.works()]
        if layout == "marlin" and inter == HIDDEN:
            rows += [timed(work) for work in Routers(package).works(layers)]
            if words.marlin:
                marlin = MarlinMoe(words.marlin)
                rows += [timed(work) for work in marlin.works(layers, TOKENS)]
                result["marlin"] = marlin.note | {"difference": marlin.difference(layers)}
        del layers
        torch.cuda.empty_cache()
    for one in ceilings + rows:
        share = one.gigabytes / read.gigabytes
        print(f"{one.name:<42}{one.variant:<52}{one.m:>2}{one.median:>9.2f} us{one.gigabytes:>7.0f} GB/s{share:>6.0%}")
    result |= {"ceilings": [one.as_json() for one in ceilings], "timed": [one.as_json() for one in rows]}
    result["clocks_after"] = loading.clocks()
    run.read([*made.sources(), *(ROOT / "kernels" / "bench" / name for name in ("ceilings.cu", "tiles.cu"))])
    run.write(words.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
