"""The numerics header against NumPy: every code, every scale, and the whole kernel's arithmetic on small cases."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest


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


def linear(host, x, weight, scale, bias=None):
    m, k = x.shape
    n = weight.shape[0]
    y = np.full((m, n), 0xDEAD, np.uint16)
    size = [ctypes.c_int64(value) for value in (m, n, k)]
    host.linear_decode(pointer(x), pointer(weight), pointer(scale), pointer(bias), pointer(y), *size)
    return y


def case(reference, seed, shape):
    m, n, k = shape
    rng = np.random.default_rng(seed)
    x = reference.round_bf16(rng.standard_normal((m, k)).astype(np.float32))
    weight = rng.integers(0, 256, (n, k // 2), dtype=np.uint8)
    scale = rng.integers(110, 140, (n, k // 32), dtype=np.uint8)
    bias = reference.round_bf16(rng.standard_normal(n).astype(np.float32))
    return x, weight, scale, bias


@pytest.mark.parametrize("shape", [(1, 5, 32), (8, 7, 2880), (3, 4, 96), (2, 3, 4096)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_linear_layer_within_the_bound_of_its_sums(host, reference, shape, with_bias):
    x, weight, scale, bias = case(reference, sum(shape), shape)
    bias = bias if with_bias else None
    got = reference.widen(linear(host, x, weight, scale, bias))
    want, size = reference.linear(x, weight, scale, bias)
    # Rounding to bf16 (2^-8 of the result) and at most 16 + K/1024 + 7 fp32 additions on any path.
    bound = np.abs(want) * 2.0**-8 + size * (24 + shape[2] / 1024) * 2.0**-24
    assert (np.abs(got - want) <= bound).all()


def test_a_wrong_nibble_order_would_be_seen(host, reference):
    x, weight, scale, _ = case(reference, 5, (2, 4, 64))
    swapped = (weight >> 4) | (weight << 4)
    want, size = reference.linear(x, weight, scale)
    got = reference.widen(linear(host, x, swapped, scale))
    assert (np.abs(got - want) > np.abs(want) * 2.0**-8 + size * 2.0**-18).any()


def test_sums_are_fp32_and_not_wider(host, reference):
    # 1 + 2^-24 is 1 in fp32 (ties to even); both stand on even k, so one running sum meets them.
    x = reference.round_bf16(np.zeros((1, 32), np.float32))
    x[0, 0] = reference.round_bf16(np.float32(1.0))
    x[0, 2] = reference.round_bf16(np.float32(2.0**-24))
    x[0, 4] = reference.round_bf16(np.float32(-1.0))
    ones = np.full((1, 16), 0x22, np.uint8)
    got = reference.widen(linear(host, x, ones, np.full((1, 1), 127, np.uint8)))
    assert got[0, 0] == 0.0


def test_scale_255_makes_the_row_nan_and_no_other(host, reference):
    x, weight, scale, bias = case(reference, 1, (4, 5, 64))
    scale[2, 1] = 255
    weight[2, 16:] = 0  # NaN, though every code under that scale is zero
    got = linear(host, x, weight, scale, bias)
    assert (got[:, 2] == 0x7FFF).all()
    assert np.isfinite(reference.widen(np.delete(got, 2, axis=1))).all()


def test_the_largest_scale_overflows_to_infinity_and_keeps_zero(host, reference):
    x = reference.round_bf16(np.ones((1, 32), np.float32))
    weight = np.stack([np.full(16, 0x22), np.full(16, 0xAA), np.zeros(16)]).astype(np.uint8)
    got = reference.widen(linear(host, x, weight, np.full((3, 1), 254, np.uint8)))
    assert got.tolist() == [[np.inf, -np.inf, 0.0]]


def test_the_smallest_scale_keeps_subnormals(host, reference):
    x = reference.round_bf16(np.zeros((1, 32), np.float32))
    x[0, 3] = reference.round_bf16(np.float32(1.0))
    weight = np.full((1, 16), 0x11, np.uint8)
    got = reference.widen(linear(host, x, weight, np.zeros((1, 1), np.uint8)))
    assert got[0, 0] == 2.0**-128
