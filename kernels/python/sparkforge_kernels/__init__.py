"""CUDA kernels for decoding on NVIDIA SM12x, called through TVM-FFI with any DLPack tensor, torch's above all.

They run on the caller's current stream, allocate nothing and may be captured in a CUDA graph; call one once before a
capture, so that its code is on the device. A wrong argument raises TypeError or ValueError with the argument's name.
"""

from __future__ import annotations

from sparkforge_kernels.library import KernelsUnavailableError, archs, build_facts, supports
from sparkforge_kernels.linear import MAX_DECODE_TOKENS, mxfp4_linear_decode

__all__ = [
    "MAX_DECODE_TOKENS",
    "KernelsUnavailableError",
    "archs",
    "build_facts",
    "mxfp4_linear_decode",
    "supports",
]
