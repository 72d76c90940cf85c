"""MXFP4 in NumPy, written from the format's definition (OCP Microscaling Formats v1.0) and not from the header."""

from __future__ import annotations

import numpy as np

E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def e8m0(scale):
    """2^(scale - 127) in float64, NaN for 255."""
    scale = np.asarray(scale, dtype=np.int64)
    return np.where(scale == 255, np.nan, np.ldexp(1.0, scale - 127))


def decode(code, scale):
    """Weight in float64: exact for every code and scale."""
    return E2M1[np.asarray(code)] * e8m0(scale)


def widen(bits):
    """float64 of bf16 bits."""
    return (np.asarray(bits, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)


def round_bf16(values):
    """bf16 bits of float32 values: nearest, ties to even, by choosing among the two neighbours."""
    values = np.asarray(values, dtype=np.float32)
    bits = values.view(np.uint32)
    low = (bits >> 16).astype(np.uint32)
    rest = bits & 0xFFFF
    up = (rest > 0x8000) | ((rest == 0x8000) & (low % 2 == 1))
    out = (low + up).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), out)
