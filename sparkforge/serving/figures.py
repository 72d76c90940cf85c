"""Predicted figures of a profile, for people who choose one."""

from __future__ import annotations

import msgspec

from sparkforge.serving import predict
from sparkforge.serving.words import Command

CONTEXT = 2048
WORKING = 6e9
"""Bytes for activations, CUDA graphs and the CUDA context: assumed."""


class Figures(msgspec.Struct, frozen=True):
    """Predicted, on Sparks of 273 GB/s.

    Attributes:
        weights_gb: resident on each machine, with the padding of the experts' kernel.
        kv_tokens: that fit beside them.
        kv_requests: of the longest kind that fit at once.
        roof: tokens a second at context 2048, one request, no speculation, no padding.
        padding: share by which the experts' kernel pads their weights, and so what it reads of them.
    """

    weights_gb: float
    kv_tokens: int
    kv_requests: float
    roof: float
    padding: float


def figures(command: Command) -> Figures | None:
    """Figures of what a profile runs; None where its model is none that is known."""
    profile = command.profile
    shape = predict.SHAPES.get(profile.model)
    if shape is None:
        return None
    said = {group[0]: group[1] for group in command.groups if len(group) > 1}
    layers = said.get("--mxfp4-layers", "moe").split(",")
    every = "all" in layers
    kept = predict.Kept(
        qkv=every or "qkv" in layers,
        out=every or "o" in layers,
        lm_head=every or "lm_head" in layers,
        kv=1 if said.get("--kv-cache-dtype", "auto").startswith("fp8") else 2,
        machines=int(said.get("--tensor-parallel-size", "1")),
    )
    kernel = command.env.get("VLLM_MXFP4_MOE_KERNEL", "marlin")
    tokens = predict.room(shape, kept, float(said["--gpu-memory-utilization"]), kernel, WORKING)
    return Figures(
        weights_gb=round(predict.resident(shape, kept, kernel) / 1e9, 1),
        kv_tokens=int(tokens),
        kv_requests=round(tokens / int(said["--max-model-len"]), 1),
        roof=round(predict.roof(shape, kept, CONTEXT), 1),
        padding=round(predict.padded(shape, kernel) - 1, 3),
    )
