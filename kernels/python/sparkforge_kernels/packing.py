"""Our packing of MXFP4 weights: units of 16 rows by 64 k, 512 bytes of codes and 32 of scales (kernels/README.md)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

ROWS, K, BYTES = 16, 64, 544
# Bit of a word for mantissa, exponent 0, exponent 1 and sign of the low half of each pair; the high half stands 16
# higher, modulo 32. As pack_codes() in mxfp4_mma.cuh, with which a test compares it.
_BITS = ((0, 1, 2, 9), (10, 11, 12, 19), (4, 5, 6, 13), (14, 7, 8, 15))
_TILES_AT_ONCE = 512


def word_table() -> list[list[int]]:
    """What code c adds to a word at place i, as [8][16] unsigned integers; place 2 j + h is the half h of pair j."""
    return [
        [
            sum(((code >> bit) & 1) << ((_BITS[i // 2][bit] + 16 * (i % 2)) % 32) for bit in range(4))
            for code in range(16)
        ]
        for i in range(8)
    ]


def pack(w: Any, w_scale: Any) -> Any:
    """Pack torch tensors.

    Args:
        w: uint8 [N, K/2], E2M1 codes in rows, the low nibble is the even k.
        w_scale: uint8 [N, K/32], E8M0.

    Returns:
        uint8 [ceil(N/16), ceil(K/64), 544] on the same device; what is beyond N and K is zero.
    """
    torch: Any = import_module("torch")  # the rest of the package needs none
    n, k = w.shape[0], 2 * w.shape[1]
    tiles, units = -(-n // ROWS), -(-k // K)
    out = torch.zeros((tiles, units, BYTES), dtype=torch.uint8, device=w.device)
    signed = [[value - (1 << 32) if value >> 31 else value for value in row] for row in word_table()]
    table = torch.tensor(signed, dtype=torch.int32, device=w.device)
    for first in range(0, tiles, _TILES_AT_ONCE):
        rows = slice(first * ROWS, min((first + _TILES_AT_ONCE) * ROWS, n))
        part = w[rows]
        count = -(-part.shape[0] // ROWS)
        codes = torch.zeros((count * ROWS, units * K), dtype=torch.uint8, device=w.device)
        codes[: part.shape[0], 0:k:2] = part & 15
        codes[: part.shape[0], 1:k:2] = part >> 4
        # [tile, row half, g, unit, t, word, k pair, k] to [tile, unit, g, t, word | k pair, row half, k]
        codes = codes.view(count, 2, 8, units, 4, 4, 2, 2).permute(0, 3, 2, 4, 5, 6, 1, 7).reshape(count, units, 128, 8)
        words = torch.zeros((count, units, 128), dtype=torch.int32, device=w.device)
        for place in range(8):
            words |= table[place][codes[..., place].int()]
        scales = torch.zeros((count * ROWS, units * 2), dtype=torch.uint8, device=w.device)
        scales[: part.shape[0], : k // 32] = w_scale[rows]
        scales = scales.view(count, 2, 8, units, 2).permute(0, 3, 2, 4, 1).reshape(count, units, 32)
        out[first : first + count, :, :512] = words.view(torch.uint8).view(count, units, 512)
        out[first : first + count, :, 512:] = scales
    return out
