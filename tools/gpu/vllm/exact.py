"""MXFP4 as the OCP Microscaling specification 1.0 and the series' scale rule define it, by brute force.

Nothing here is shared with the quantizer under test: the scale comes from comparisons of float64 values, and an
element's code from its distances to all eight magnitudes. float64 holds every BF16 times every power of two exactly.
"""

from __future__ import annotations

import torch

BLOCK = 32
BIAS = 127
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
LEAST, MOST = -127, 125  # shared exponents at which every product is a finite, representable number


def powers(exponents: torch.Tensor) -> torch.Tensor:
    """float64 2^n of integers from -1022 to 1023, by their bits: what a device's pow returns is not taken on trust."""
    return ((exponents.long() + 1023) << 52).view(torch.float64)


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """MXFP4 of finite values [N, K]: codes u8 [N, K/2], even k in the low nibble, and E8M0 u8 [N, K/32]."""
    n, k = weight.shape
    block = weight.double().reshape(n, k // BLOCK, BLOCK)
    amax = block.abs().amax(dim=-1)
    # The largest e with 2^e <= amax, by comparison with every power of two that BF16 reaches.
    table = powers(torch.arange(-140, 129, device=weight.device))
    floor = torch.searchsorted(table, amax.contiguous(), right=True) - 1 - 140
    shared = floor - 2
    shared = shared + (amax >= 7 * powers(shared)).to(shared.dtype)
    shared = torch.where(amax > 0, shared, torch.zeros_like(shared)).clamp(LEAST, MOST)
    scaled = block.abs() / powers(shared).unsqueeze(-1)
    magnitudes = torch.tensor(MAGNITUDES, dtype=torch.float64, device=weight.device)
    code = torch.zeros_like(scaled, dtype=torch.uint8)
    best = (scaled - magnitudes[0]).abs()
    for candidate in range(1, len(MAGNITUDES)):
        distance = (scaled - magnitudes[candidate]).abs()
        # Of two magnitudes as near, the one with the even code.
        better = (distance < best) | ((distance == best) & (candidate % 2 == 0))
        code = torch.where(better, torch.full_like(code, candidate), code)
        best = torch.minimum(best, distance)
    code = (code + 8 * torch.signbit(block).to(torch.uint8)).reshape(n, k)
    return code[:, 0::2] | (code[:, 1::2] << 4), (shared + BIAS).to(torch.uint8)


def quantize_pieces(weight: torch.Tensor, rows: int = 4096) -> tuple[torch.Tensor, torch.Tensor]:
    """As quantize, in pieces of rows: its float64 copies are eight times the weight."""
    pieces = [quantize(part) for part in weight.split(rows)]
    return torch.cat([codes for codes, _ in pieces]), torch.cat([scales for _, scales in pieces])


def dequantize(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The float64 values [..., K] that codes u8 [..., K/2] and scales u8 [..., K/32] mean."""
    signed = (*MAGNITUDES, *(-value for value in MAGNITUDES))
    values = torch.tensor(signed, dtype=torch.float64, device=codes.device)
    code = torch.stack([codes & 0xF, codes >> 4], dim=-1).flatten(-2).long()
    blocks = values[code].unflatten(-1, (-1, BLOCK))
    return (blocks * powers(scales.int() - BIAS).unsqueeze(-1)).flatten(-2)
