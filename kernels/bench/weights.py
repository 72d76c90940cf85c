"""MXFP4 weights in every layout that a kernel reads, from codes and scales in rows; and what they are in float64."""

from __future__ import annotations

from typing import Any

import torch

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
LAYOUTS = ("rows", "marlin", "packed")
MARLIN_ROWS = 64
# vLLM's get_scale_perms(): the columns of scales and of bias that Marlin's fragments want side by side.
_SCALES = [i + 8 * j for i in range(8) for j in range(8)]
_BIAS = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]


def dequantized(w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """float64 [N, K] of rows uint8 [N, K/2] and E8M0 [N, K/32]; NaN under 255."""
    table = torch.tensor(E2M1, dtype=torch.float64, device=w.device)
    codes = torch.stack([w & 15, w >> 4], dim=-1).flatten(1).long()
    exponent = scale.double() - 127
    factor = torch.where(exponent == 128, torch.nan, torch.exp2(exponent))  # noqa: PLR2004  255 is NaN
    return table[codes] * factor.repeat_interleave(32, dim=1)


def to_marlin(w: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What gptq_marlin_repack, marlin_permute_scales and mxfp4_marlin_process_scales make of rows; N padded to 64."""
    n, k = w.shape[0], 2 * w.shape[1]
    rows = -(-n // MARLIN_ROWS) * MARLIN_ROWS
    codes = torch.zeros((rows, k), dtype=torch.uint8, device=w.device)
    codes[:n, 0::2] = w & 15
    codes[:n, 1::2] = w >> 4
    padded = torch.full((rows, k // 32), 127, dtype=torch.uint8, device=w.device)
    padded[:n] = scale
    # [n64, n16, row half, g, k16, k half, t, k] to [k16, n64, g, t, n16 | k, row half, k half]
    codes = codes.view(rows // 64, 4, 2, 8, k // 16, 2, 4, 2).permute(4, 0, 3, 6, 1, 7, 2, 5)
    packed = (codes[..., 0] | (codes[..., 1] << 4)).contiguous().view(k // 16, 8 * rows).view(torch.int32)
    scales = padded.T.contiguous().view(-1, 64)[:, _SCALES].reshape(-1, 4)[:, [0, 2, 1, 3]]
    return packed, scales.reshape(k // 32, rows).contiguous()


def to_marlin_bias(bias: torch.Tensor) -> torch.Tensor:
    """What marlin_permute_bias makes of it; padded with zeros to 64."""
    rows = -(-bias.numel() // MARLIN_ROWS) * MARLIN_ROWS
    padded = torch.zeros(rows, dtype=bias.dtype, device=bias.device)
    padded[: bias.numel()] = bias
    return padded.view(-1, 32)[:, _BIAS].reshape(-1).contiguous()


def lay(kernels: Any, layout: str, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> tuple[Any, ...]:
    """(w, w_scale, bias) as the kernel takes them in a layout."""
    if layout == "marlin":
        return (*to_marlin(w, scale), None if bias is None else to_marlin_bias(bias))
    if layout == "packed":
        return kernels.pack(w, scale), None, bias
    return w, scale, bias


def random_bytes(layout: str, n: int, k: int) -> tuple[Any, ...]:
    """(w, w_scale) of random weights straight in a layout, for timing: any bytes are codes; scales are 2^-12 to 2^0."""
    scales = torch.randint(115, 128, (k // 32 * n,), dtype=torch.uint8, device="cuda")
    if layout == "packed":
        units = torch.randint(0, 256, (-(-n // 16), -(-k // 64), 544), dtype=torch.uint8, device="cuda")
        units[..., 512:] = torch.randint(115, 128, (*units.shape[:2], 32), dtype=torch.uint8, device="cuda")
        return units, None
    codes = torch.randint(0, 256, (n * k // 2,), dtype=torch.uint8, device="cuda")
    if layout == "marlin":
        return codes.view(torch.int32).view(k // 16, 2 * n), scales.view(k // 32, n)
    return codes.view(n, k // 2), scales.view(n, k // 32)
