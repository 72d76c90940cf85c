"""Linear layers on MXFP4 weights."""

from __future__ import annotations

from typing import Any

from sparkforge_kernels.library import function

MAX_DECODE_TOKENS = 8


def mxfp4_linear_decode(x: Any, w: Any, w_scale: Any, bias: Any = None, out: Any = None) -> Any:
    """Compute y = x W^T + b for 1 to 8 tokens, on the current stream of x's device.

    Products are exact in fp32, sums are fp32 in an order that depends on K alone, the result is rounded once to bf16.
    A scale code 255 makes its output NaN; overflow is infinite; subnormals are kept.

    Args:
        x: bf16 [M, K], contiguous, 16-byte aligned; M from 1 to 8, K a multiple of 32.
        w: uint8 [N, K/2], E2M1 codes of W [N, K], the low nibble is the even k; contiguous, 16-byte aligned.
        w_scale: uint8 [N, K/32], E8M0: 2^(code - 127) for 32 consecutive k.
        bias: bf16 [N] or None.
        out: bf16 [M, N] to write to, overlapping no argument; None allocates it with x.new_empty.

    Returns:
        out.

    Raises:
        TypeError: an argument has another dtype.
        ValueError: an argument has another shape, device, layout or alignment, or out overlaps one.
        RuntimeError: CUDA refused the launch, as it does when the library has no code for this device.
        KernelsUnavailableError: the library is not there or cannot be loaded.
    """
    call = function("mxfp4_linear_decode")
    if out is None:
        out = x.new_empty((x.shape[0], w.shape[0]))
    call(x, w, w_scale, bias, out)
    return out
