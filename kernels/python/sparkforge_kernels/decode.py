"""What vLLM may call for few tokens: the entry point of this package in the group `vllm.decode_kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkforge_kernels.library import supports
from sparkforge_kernels.linear import MAX_DECODE_TOKENS, marlin_linear_decode


def decode_kernels(capability: Sequence[int]) -> list[dict[str, Any]]:
    """Kernels for a device, in the form that the patched `vllm.utils.decode_kernels` reads.

    Args:
        capability: compute capability, (12, 1) for GB10.

    Returns:
        A dict for each kernel; none where this build has no code for the device. `faster` is whether the kernel was
        measured to be faster on that device than what it stands in for: no run on a GB10 has shown it yet.
    """
    major, minor = capability
    if not supports((major, minor)):
        return []
    return [
        {
            "kind": "dense",
            "name": "mxfp4_linear_decode",
            "tokens": (1, MAX_DECODE_TOKENS),
            "run": marlin_linear_decode,
            "faster": False,
        }
    ]
