"""Linear layers on MXFP4 weights, for few tokens."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from sparkforge_kernels.library import function

MAX_DECODE_TOKENS = 8
MAX_TOP = 16
LAYOUTS = {"rows": 0, "marlin": 1, "packed": 2}


def mxfp4_linear_decode(
    x: Any,
    w: Any,
    w_scale: Any = None,
    bias: Any = None,
    out: Any = None,
    *,
    layout: str = "rows",
    overlap: bool = False,
) -> Any:
    """Compute y = x W^T + b for 1 to 8 tokens, on the current stream of x's device.

    Weights are exact in bf16 under their scale, products are exact, sums are fp32 in an order that depends on N, K and
    the layout alone, the result is rounded once to bf16. A scale code 255 makes its output NaN; overflow is infinite.

    Args:
        x: bf16 [M, K], contiguous, 16-byte aligned; M from 1 to 8, any M for "packed", which reads the weights once for
            eight tokens; K a multiple of 32.
        w: E2M1 codes of W [N, K], contiguous, 16-byte aligned.
            "rows": uint8 [N, K/2], the low nibble is the even k.
            "marlin": int32 [K/16, 2 N'], as vLLM's gptq_marlin_repack lays them; N' is N padded to a multiple of 64.
            "packed": uint8 [ceil(N/16), ceil(K/64), 544] of `pack`, scales and all.
        w_scale: E8M0, 2^(code - 127) for 32 consecutive k; uint8 or float8_e8m0fnu.
            "rows": [N, K/32]. "marlin": [K/32, N'], as vLLM's mxfp4_marlin_process_scales lays them. "packed": None.
        bias: bf16 [N], or [N'] in the order of vLLM's marlin_permute_bias for "marlin"; or None.
        out: bf16 [M, N] to write to, overlapping no argument; None allocates it with x.new_empty, with N' columns for
            "marlin" and whole units for "packed".
        layout: how w lies, see `LAYOUTS`.
        overlap: programmatic dependent launch: ask for weights while the kernel before is still running.

    Returns:
        out.

    Raises:
        TypeError: an argument has another dtype.
        ValueError: an argument has another shape, device, layout or alignment, or out overlaps one.
        RuntimeError: CUDA refused the launch, as it does when the library has no code for this device.
        KernelsUnavailableError: the library is not there or cannot be loaded.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}, wanted one of {', '.join(LAYOUTS)}")
    call = function("mxfp4_linear_decode")
    if out is None:
        rows = {"rows": w.shape[0], "marlin": w.shape[1] // 2, "packed": 16 * w.shape[0]}[layout]
        out = x.new_empty((x.shape[0], rows))
    call(x, w, as_bytes(w_scale), bias, out, LAYOUTS[layout], overlap)
    return out


def marlin_linear_decode(x: Any, w: Any, w_scale: Any, bias: Any, out: Any) -> Any:
    """`mxfp4_linear_decode` on a layer that vLLM prepared for Marlin: the call of patch V-10."""
    return mxfp4_linear_decode(x, w, w_scale, bias, out, layout="marlin")


def lm_head_topk_decode(  # noqa: PLR0917  what it writes to is many things
    x: Any,
    w: Any,
    n: int,
    values: Any,
    ids: Any,
    log_sum: Any,
    scratch: Any,
    *,
    bias: Any = None,
    logits: Any = None,
    overlap: bool = False,
) -> None:
    """Find the k largest logits and log-sum-exp of all, for 1 to 8 tokens; the logits themselves stay out of memory.

    A logit is the bf16 that `mxfp4_linear_decode` would write. Equal logits are ordered by row, lowest first; NaN is
    above all, as for torch.topk. The same inputs give the same bits on one kind of device.

    Args:
        x: bf16 [M, K], as for `mxfp4_linear_decode`.
        w: uint8 [ceil(n/16), ceil(K/64), 544], of `pack`.
        n: rows of W, the size of the vocabulary.
        values: fp32 [M, k] to write to, descending; k from 1 to 16.
        ids: int32 [M, k] to write to.
        log_sum: fp32 [M] to write to: log(sum(exp(logits))).
        scratch: uint8, at least `lm_head_topk_scratch(M, k)` bytes, 16-byte aligned; needs no clearing.
        bias: bf16 [n] or None.
        logits: bf16 [M, n] to write to, or None.
        overlap: programmatic dependent launch.

    Raises:
        TypeError, ValueError, RuntimeError, KernelsUnavailableError: as for `mxfp4_linear_decode`.
    """
    function("lm_head_topk_decode")(x, w, bias, values, ids, log_sum, scratch, logits, n, overlap)


def lm_head_topk_scratch(tokens: int, top: int) -> int:
    """Bytes of scratch that `lm_head_topk_decode` needs."""
    size: int = function("lm_head_topk_scratch")(tokens, top)
    return size


def as_bytes(scale: Any) -> Any:
    """Scale codes as uint8: torch's float8_e8m0fnu is another name for the same bytes."""
    if scale is None or "float8_e8m0fnu" not in str(getattr(scale, "dtype", "")):
        return scale
    return scale.view(import_module("torch").uint8)  # it is there: such a tensor is its
