"""Measure every kernel beside the ceilings of the same run, in one process on one GPU.

    python kernels/bench/measure.py --json results/kernels/decode-sm90.json

Weights rotate, so that no cache holds them; each figure is the median of 100 replays of a captured graph, and every
sample is written. `--package` and `--ceilings` name libraries that were compiled elsewhere; without them they are
compiled here. Another kernel is added by a module like dense.py, named in PARTS.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import loading
import torch
from correct import GPT_OSS
from dense import LAYERS, TOKENS, Dense, torch_works, weight_bytes
from graphs import Timed, Work, timed
from limits import GIB, Limits

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from sparkforge.results.provenance import Run  # noqa: E402  the path comes first

# Modules that time other kernels. Each has Part(kernels) with works() -> Iterator[Work], step(layer, m) -> the calls of
# that layer in a decode step, and step_bytes(m) -> bytes that they must move; they are called after o, in this order.
PARTS: tuple[str, ...] = ("moe_part",)


def main() -> int:
    """Measure, print a table, write everything."""
    run = Run(__file__)
    words = _parse()
    begun = time.monotonic()
    kernels = loading.package(words.package)
    limits = Limits(loading.ceilings(words.ceilings, "{}{}".format(*torch.cuda.get_device_capability())))
    result: dict[str, Any] = loading.facts(kernels)
    ceiling = _ceilings(limits)
    times: list[Timed] = []
    for layout in words.layouts.split(","):
        dense = Dense(kernels, layout)
        times += [_show(timed(work), ceiling) for work in dense.works()]
        times += _steps(kernels, dense, ceiling)
        del dense
        torch.cuda.empty_cache()
    if not words.no_peers:
        times += [_show(timed(work), ceiling) for work in torch_works()]
    for name in PARTS:
        times += [_show(timed(work), ceiling) for work in importlib.import_module(name).Part(kernels).works()]
    result |= {
        "ceilings": {name: one.as_json() for name, one in ceiling.items()},
        "timed": [one.as_json() for one in times],
        "clocks_after": loading.clocks(),
        "seconds": time.monotonic() - begun,
    }
    run.read([*loading.sources(), ROOT / "kernels" / "bench" / "ceilings.cu"])
    if words.json:
        run.write(words.json, result)
    print(f"{result['seconds']:.0f} s")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--package", type=Path, help="folder that holds sparkforge_kernels/")
    parser.add_argument("--ceilings", type=Path, help="ceilings.cu, compiled")
    parser.add_argument("--layouts", default="packed,marlin,rows")
    parser.add_argument("--json", type=Path, help="write everything here, every sample included")
    parser.add_argument("--no-peers", action="store_true")
    return parser.parse_args()


def _ceilings(limits: Limits) -> dict[str, Timed]:
    """By name; the ceiling of all is "read 1 GiB"."""
    found = {
        "copy": limits.copy(),
        "read 1 GiB": limits.read("read 1 GiB", [GIB], overlap=False, calls=1),
        "gap": limits.gap(overlap=False),
        "gap, PDL": limits.gap(overlap=True),
    }
    for name, shape in GPT_OSS.items():
        for overlap in (False, True):
            key = f"{name}{', PDL' if overlap else ''}"
            found[key] = limits.read(
                name, [weight_bytes(*shape)], overlap=overlap, calls=3 if name == "lm_head" else LAYERS
            )
    pair = [weight_bytes(*GPT_OSS[name]) for name in ("qkv", "o")]
    found["qkv + o, 36 layers, PDL"] = limits.read("qkv + o", pair, overlap=True, calls=LAYERS)
    for name, one in found.items():
        print(f"{name:<28}{one.median:>10.2f} us{one.gigabytes:>8.0f} GB/s   {one.variant}")
    return found


def _steps(kernels: Any, dense: Dense, ceiling: dict[str, Timed]) -> list[Timed]:
    """A decode step's weight traffic in one graph: dense layers, PARTS, lm_head. Attention is left out."""
    parts = [importlib.import_module(name).Part(kernels) for name in PARTS]
    done = []
    for m in TOKENS:
        calls: list[Callable[[], Any]] = []
        size = weight_bytes(*GPT_OSS["lm_head"])
        for layer in range(LAYERS):
            calls += dense.step(layer, m)
            size += dense.step_bytes()
            for part in parts:
                calls += part.step(layer, m)
                size += part.step_bytes(m)
        head = (
            dense.top(0, m, 1, overlap=True) if dense.layout == "packed" else dense.call("lm_head", 0, m, overlap=True)
        )
        everything = [*calls, head]
        work = Work(
            "step: " + ", ".join(["qkv", "o", *PARTS, "lm_head"]), f"{dense.layout}, PDL", m, size, [_all(everything)]
        )
        done.append(_show(timed(work), ceiling))
    return done


def _all(calls: list[Callable[[], Any]]) -> Callable[[], None]:
    def call() -> None:
        for one in calls:
            one()

    return call


def _show(one: Timed, ceiling: dict[str, Timed]) -> Timed:
    share = one.gigabytes / ceiling["read 1 GiB"].gigabytes
    key = one.name + (", PDL" if "PDL" in one.variant else "")
    same = ceiling.get(key)
    beside = f"{same.gigabytes and one.gigabytes / same.gigabytes:>8.1%} of the same launch" if same else ""
    print(
        f"{one.name:<24}{one.variant:<16}M {one.m}{one.median:>10.2f} us{one.gigabytes:>8.0f} GB/s{share:>8.1%}{beside}"
    )
    return one


if __name__ == "__main__":
    sys.exit(main())
