"""CUDA kernels for decoding on NVIDIA SM12x, called through TVM-FFI with any DLPack tensor, torch's above all.

They run on the caller's current stream, allocate nothing and may be captured in a CUDA graph; call one once before a
capture, so that its code is on the device. A wrong argument raises TypeError or ValueError with the argument's name.
"""

from __future__ import annotations

from sparkforge_kernels.experts import (
    EXPERT_LAYOUTS,
    MAX_EXPERTS_A_TOKEN,
    mxfp4_moe_decode,
    mxfp4_moe_scratch,
    router_topk_decode,
    router_topk_scratch,
)
from sparkforge_kernels.library import KernelsUnavailableError, archs, build_facts, supports
from sparkforge_kernels.linear import (
    LAYOUTS,
    MAX_DECODE_TOKENS,
    MAX_TOP,
    lm_head_topk_decode,
    lm_head_topk_scratch,
    marlin_linear_decode,
    mxfp4_linear_decode,
)
from sparkforge_kernels.packing import pack

__all__ = [
    "EXPERT_LAYOUTS",
    "LAYOUTS",
    "MAX_DECODE_TOKENS",
    "MAX_EXPERTS_A_TOKEN",
    "MAX_TOP",
    "KernelsUnavailableError",
    "archs",
    "build_facts",
    "lm_head_topk_decode",
    "lm_head_topk_scratch",
    "marlin_linear_decode",
    "mxfp4_linear_decode",
    "mxfp4_moe_decode",
    "mxfp4_moe_scratch",
    "pack",
    "router_topk_decode",
    "router_topk_scratch",
    "supports",
]
