"""Router and experts of a layer, as measure.py takes them into a whole decode step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from graphs import Work
from measure_experts import EXPERTS, HIDDEN, LAYERS, TOPK, Layers, Routers, moe_bytes

ROUTER_EXPERTS = 128


class Part:
    """36 layers in Marlin's layout, 32 experts each in place of 128: 15 GB.

    Tokens go to distinct experts that are chosen here: what a router of random weights chooses would coincide by
    chance, and the bytes would not be known. The router runs all the same.
    """

    def __init__(self, kernels: Any) -> None:
        self.layers, self.routers = Layers(kernels, "marlin", HIDDEN), Routers(kernels)

    def works(self) -> Iterator[Work]:
        """Nothing on its own: measure_experts.py measures these."""
        return iter(())

    def step(self, layer: int, m: int) -> list[Callable[[], Any]]:
        """The calls of one layer."""
        x = torch.randn(m, HIDDEN, device="cuda").bfloat16()
        chosen = torch.zeros(m, TOPK, dtype=torch.int32, device="cuda"), torch.zeros(m, TOPK, device="cuda")
        router = self.routers.one(layer % LAYERS, x, chosen, torch.empty_like(x), ROUTER_EXPERTS)
        weights = torch.full((m, TOPK), 1 / TOPK, device="cuda")
        ids = self.layers.ids(m, shared=False)
        return [router, self.layers.call(self.layers.packed[layer], m, ids, weights, overlap=True)]

    def step_bytes(self, m: int) -> int:
        """Weights and scales of one layer: the router and m times four experts of at most 32."""
        return 2 * ROUTER_EXPERTS * HIDDEN + moe_bytes(min(m * TOPK, EXPERTS), HIDDEN)
