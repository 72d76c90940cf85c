"""What to time of the dense layers, and their part of a decode step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from correct import GPT_OSS
from graphs import Work
from weights import random_bytes

LAYERS = 36
TOKENS = (1, 2, 4, 8)
HEADS = 2  # copies of lm_head: each is larger than the caches


def weight_bytes(n: int, k: int) -> int:
    """Codes and scales."""
    return n * k // 2 + n * k // 32


class Dense:
    """Weights of every layer in one layout, and calls on them."""

    def __init__(self, kernels: Any, layout: str) -> None:
        self.kernels, self.layout = kernels, layout
        self.weights = {
            name: [random_bytes(layout, n, k) for _ in range(HEADS if name == "lm_head" else LAYERS)]
            for name, (n, k) in GPT_OSS.items()
        }

    def call(self, name: str, index: int, m: int, *, overlap: bool) -> Callable[[], Any]:
        """One layer's product."""
        n, k = GPT_OSS[name]
        x = torch.randn(m, k, device="cuda").bfloat16()
        out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
        w, scale = self.weights[name][index]
        run = self.kernels.mxfp4_linear_decode
        return partial(run, x, w, scale, None, out, layout=self.layout, overlap=overlap)

    def top(self, index: int, m: int, top: int, *, overlap: bool) -> Callable[[], Any]:
        """lm_head with the search for the largest logits."""
        n, k = GPT_OSS["lm_head"]
        x = torch.randn(m, k, device="cuda").bfloat16()
        values = torch.empty(m, top, device="cuda")
        ids = torch.empty(m, top, dtype=torch.int32, device="cuda")
        scratch = torch.empty(self.kernels.lm_head_topk_scratch(m, top), dtype=torch.uint8, device="cuda")
        log_sum = torch.empty(m, device="cuda")
        w = self.weights["lm_head"][index][0]
        run = self.kernels.lm_head_topk_decode
        return partial(run, x, w, n, values, ids, log_sum, scratch, overlap=overlap)

    def works(self) -> Iterator[Work]:
        """Each layer alone, with and without PDL; qkv and o chained."""
        for m in TOKENS:
            for overlap in (False, True):
                variant = f"{self.layout}{', PDL' if overlap else ''}"
                for name, (n, k) in GPT_OSS.items():
                    count = len(self.weights[name])
                    calls = [self.call(name, index, m, overlap=overlap) for index in range(count)]
                    yield Work(name, variant, m, weight_bytes(n, k), calls)
                    if name == "lm_head" and self.layout == "packed":
                        for top in (1, 16):
                            calls = [self.top(index, m, top, overlap=overlap) for index in range(count)]
                            yield Work(f"lm_head top {top}", variant, m, weight_bytes(n, k), calls)
            pairs = [self.call(name, i, m, overlap=True) for i in range(LAYERS) for name in ("qkv", "o")]
            size = sum(weight_bytes(*GPT_OSS[name]) for name in ("qkv", "o"))
            # Two calls are one layer: time and bytes are given for one call.
            yield Work("qkv + o, 36 layers", f"{self.layout}, PDL", m, size // 2, pairs)

    def step(self, layer: int, m: int) -> list[Callable[[], Any]]:
        """This layer's calls in a decode step; attention is left out."""
        return [self.call(name, layer, m, overlap=True) for name in ("qkv", "o")]

    def step_bytes(self) -> int:
        """Of one layer."""
        return sum(weight_bytes(*GPT_OSS[name]) for name in ("qkv", "o"))


def torch_works() -> Iterator[Work]:
    """The same layers in BF16 by torch: what a user has without quantisation."""
    for name, (n, k) in GPT_OSS.items():
        copies = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(2 if name == "lm_head" else 9)]
        for m in TOKENS:
            x = torch.randn(m, k, device="cuda").bfloat16()
            out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
            calls = [partial(torch.mm, x, w.T, out=out) for w in copies]
            yield Work(name, "torch, BF16", m, 2 * n * k, calls)
