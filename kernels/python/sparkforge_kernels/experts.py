"""Mixtures of MXFP4 experts and their router, for few tokens."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from sparkforge_kernels.library import function

MAX_EXPERTS_A_TOKEN = 8
EXPERT_LAYOUTS = {"marlin": 0, "cutlass": 1}


def mxfp4_moe_decode(  # noqa: PLR0917  tensors in the order of the mathematics
    x: Any,
    topk_ids: Any,
    topk_weights: Any,
    w13: Any,
    w13_scale: Any,
    w2: Any,
    w2_scale: Any,
    *,
    inter: int,
    layout: str,
    scratch: Any,
    w13_bias: Any = None,
    w2_bias: Any = None,
    residual: Any = None,
    out: Any = None,
    alpha: float = 1.702,
    limit: float = 7.0,
    overlap: bool = False,
    shared_limit: int = 0,
) -> Any:
    """Compute a mixture of gated experts for 1 to 8 tokens in one launch, on the current stream of x's device.

    For each expert of a token: gate, up = x W13^T + b13; act = gate sigmoid(alpha gate) (up + 1) with gate <= limit and
    |up| <= limit; out = residual + sum over experts of its routing weight times (act W2^T + b2). Weights of an expert
    are read once, whatever the number of tokens; padding is not read. Sums are fp32, act is rounded to bf16, the result
    is rounded once. A NaN stays a NaN, and a scale code 255 is one. The same inputs give the same bits on one kind of
    device.

    Sizes: M tokens, k experts a token, E experts, H = hidden, I = inter; H' and I' are H and I as stored, with padding.

    Args:
        x: bf16 [M, H], contiguous, 16-byte aligned; M from 1 to 8, H a multiple of 32.
        topk_ids: int32 [M, k], k from 1 to 8; an id outside 0..E-1 counts for nothing.
        topk_weights: fp32 [M, k].
        w13: E2M1 codes of gate and up, E first, contiguous, 16-byte aligned; any type of the right number of bytes.
            "marlin": as vLLM 0.21 prepares MXFP4 experts for Marlin, rows gate, up, gate, up; int32 [E, H'/16, 4 I'].
            "cutlass": as vLLM prepares them for FlashInfer's CUTLASS, rows up then gate; uint8 [E, 2 I', H'/2].
        w13_scale: E8M0, one byte for 32 k. "marlin": [E, H'/32, 2 I'] as mxfp4_marlin_process_scales leaves them.
            "cutlass": [E, 2 I', H'/32] in the 128x4 order of block_scale_interleave.
        w2: the same for down: int32 [E, I'/16, 2 H'] or uint8 [E, H', I'/2].
        w2_scale: [E, I'/32, H'] or [E, H', I'/32].
        inter: I, a multiple of 32.
        layout: one of `EXPERT_LAYOUTS`.
        scratch: uint8, at least `mxfp4_moe_scratch(...)` bytes, 128-byte aligned, zero before its first use; calls that
            share it must be ordered by a stream.
        w13_bias: bf16 [E, 2 I'] in the order of marlin_permute_bias or of the rows; or None.
        w2_bias: bf16 [E, H'] likewise; or None.
        residual: bf16 [M, H] or None; may be out itself.
        out: bf16 [M, H] to write to; None allocates it with x.new_empty.
        alpha: of the sigmoid.
        limit: of gate and up.
        overlap: programmatic dependent launch: start while the kernel before is still running.
        shared_limit: bytes of shared memory that a block may take, 0 for what the device has; a test of the shape for a
            device with less.

    Returns:
        out.

    Raises:
        TypeError: an argument has another dtype.
        ValueError: an argument has another shape, device, layout or alignment, or overlaps what is written.
        RuntimeError: CUDA refused the launch, as it does when the library has no code for this device.
        KernelsUnavailableError: the library is not there or cannot be loaded.
    """
    if layout not in EXPERT_LAYOUTS:
        raise ValueError(f"layout is {layout!r}, wanted one of {', '.join(EXPERT_LAYOUTS)}")
    call = function("mxfp4_moe_decode")
    if out is None:
        out = x.new_empty(tuple(x.shape))
    call(
        x, topk_ids, topk_weights, _bytes(w13), _bytes(w13_scale), w13_bias, _bytes(w2), _bytes(w2_scale), w2_bias,
        residual, scratch, out, inter, EXPERT_LAYOUTS[layout], alpha, limit, overlap, shared_limit,
    )  # fmt: skip
    return out


def mxfp4_moe_scratch(tokens: int, topk: int, inter: int, device: int = 0) -> int:
    """Bytes of scratch that `mxfp4_moe_decode` needs on a CUDA device: 8.2 KB a multiprocessor and 4 inter a pair."""
    size: int = function("mxfp4_moe_scratch")(tokens, topk, inter, device)
    return size


def router_topk_decode(
    x: Any,
    w: Any,
    ids: Any,
    weights: Any,
    *,
    scratch: Any,
    bias: Any = None,
    norm_weight: Any = None,
    normed: Any = None,
    epsilon: float = 1e-5,
    overlap: bool = False,
) -> None:
    """Choose the experts of 1 to 8 tokens in one launch: RMSNorm, x W^T + b, the k largest, softmax over them.

    Logits are fp32. Equal ones are ordered by expert, lowest first; a NaN comes after all numbers.

    Args:
        x: bf16 [M, H], contiguous, 16-byte aligned; H a multiple of 8 up to 8192.
        w: bf16 [E, H], contiguous, 16-byte aligned; E up to 256.
        ids: int32 [M, k] to write to; k from 1 to 8.
        weights: fp32 [M, k] to write to; they sum to one.
        scratch: uint8, at least `router_topk_scratch(M, E)` bytes, 128-byte aligned, zero before its first use; calls
            that share it must be ordered by a stream.
        bias: bf16 [E] or None.
        norm_weight: bf16 [H]: x is x / sqrt(mean(x^2) + epsilon) * norm_weight first, rounded once to bf16; or None.
        normed: bf16 [M, H] to write that x to; given exactly where norm_weight is.
        epsilon: of the norm.
        overlap: programmatic dependent launch: w is asked for while the kernel before is still running.

    Raises:
        TypeError, ValueError, RuntimeError, KernelsUnavailableError: as for `mxfp4_moe_decode`.
    """
    function("router_topk_decode")(x, norm_weight, w, bias, normed, ids, weights, scratch, epsilon, overlap)


def router_topk_scratch(tokens: int, experts: int) -> int:
    """Bytes of scratch that `router_topk_decode` needs."""
    size: int = function("router_topk_scratch")(tokens, experts)
    return size


def _bytes(tensor: Any) -> Any:
    """Packed codes and scales as uint8; torch's int32 and float8_e8m0fnu are other names for the same bytes."""
    if "uint8" in str(getattr(tensor, "dtype", "uint8")):
        return tensor
    return tensor.view(import_module("torch").uint8)  # it is there: such a tensor is its
