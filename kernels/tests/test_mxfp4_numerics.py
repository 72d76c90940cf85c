"""The numerics header against NumPy: every code, every scale, every bf16."""

from __future__ import annotations

import ctypes

import numpy as np


def pointer(array):
    return None if array is None else array.ctypes.data_as(ctypes.c_void_p)


def decode_table(host):
    table = np.empty((256, 16), np.float32)
    host.decode_table(pointer(table))
    return table


def test_every_code_under_every_scale_is_exact_or_infinite(host, reference):
    got = decode_table(host)
    want = reference.decode(np.arange(16)[None, :], np.arange(256)[:, None])
    with np.errstate(over="ignore"):
        rounded = want.astype(np.float32)
    finite = np.isfinite(rounded)
    assert (rounded[finite].astype(np.float64) == want[finite]).all(), "the reference itself is exact in fp32"
    assert np.isnan(got[255]).all()
    assert (got[:255].view(np.uint32) == rounded[:255].view(np.uint32)).all()


def test_the_corners_by_hand(host):
    table = decode_table(host)
    assert table[0, 1] == 2.0**-128  # a subnormal, kept
    assert table[0, 1].view(np.uint32) == 0x00200000
    assert table[254, 3] == 1.5 * 2.0**127
    assert np.isposinf(table[254, 4])
    assert np.isneginf(table[254, 15])
    assert table[254, 0] == 0.0
    assert not np.signbit(table[254, 0])
    assert np.signbit(table[254, 8])
    assert np.isnan(table[255, 0])
    assert table[127].tolist()[:8] == [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def test_every_scale(host, reference):
    got = np.empty(256, np.float32)
    host.e8m0_table(pointer(got))
    want = reference.e8m0(np.arange(256))
    assert (got[:255].astype(np.float64) == want[:255]).all()
    assert np.isnan(got[255])


def test_the_low_nibble_is_the_even_element(host, reference):
    out = np.empty(8, np.float32)
    host.unpack_word(ctypes.c_uint32(0x76543210), pointer(out))
    assert out.tolist() == reference.E2M1[:8].tolist()
    host.unpack_word(ctypes.c_uint32(0xFEDCBA98), pointer(out))
    assert out.tolist() == reference.E2M1[8:].tolist()


def test_every_bf16_widens_exactly(host, reference):
    bits = np.arange(1 << 16, dtype=np.uint16)
    out = np.empty(1 << 16, np.float32)
    host.widen_bf16(pointer(bits), pointer(out), ctypes.c_int64(bits.size))
    with np.errstate(invalid="ignore"):  # signalling NaNs
        assert np.array_equal(out.astype(np.float64), reference.widen(bits), equal_nan=True)


def test_rounding_to_bf16_around_every_bf16(host, reference):
    low = np.arange(1 << 16, dtype=np.uint32) << 16
    near = np.concatenate([low + d for d in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).astype(np.uint32)
    values = near.view(np.float32)
    out = np.empty(values.size, np.uint16)
    host.round_bf16(pointer(values), pointer(out), ctypes.c_int64(values.size))
    assert (out == reference.round_bf16(values)).all()
