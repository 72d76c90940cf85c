"""Weights widened to bf16: every code at every place of a word, and under every scale."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def widen(host, words, *, packed):
    words = np.ascontiguousarray(words, np.uint32)
    out = np.empty((words.size, 8), np.uint16)
    host.widen(pointer(words), pointer(out), ctypes.c_int64(words.size), ctypes.c_int(packed))
    return out


def pack(host, codes):
    codes = np.ascontiguousarray(codes, np.uint8)
    words = np.empty(codes.shape[0], np.uint32)
    host.pack(pointer(codes), pointer(words), ctypes.c_int64(words.size))
    return words


def every_code_at_every_place():
    """Codes [8 * 16 * 16, 8]: each place runs through all codes beside sixteen random neighbourhoods."""
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 16, (8, 16, 16, 8), dtype=np.uint8)
    for place in range(8):
        codes[place, :, :, place] = np.arange(16)[:, None]
    return codes.reshape(-1, 8)


def values(reference, bits):
    return reference.widen(bits) * 2.0**126


def test_nibbles_come_apart_in_pairs_of_j_and_j_plus_4(mma_host, reference):
    codes = every_code_at_every_place()
    words = (codes.astype(np.uint32) << (4 * np.arange(8, dtype=np.uint32))).sum(axis=1, dtype=np.uint32)
    got = values(reference, widen(mma_host, words, packed=0))
    assert (got == reference.E2M1[codes[:, [0, 4, 1, 5, 2, 6, 3, 7]]]).all()
    assert (np.signbit(got) == np.signbit(reference.E2M1[codes[:, [0, 4, 1, 5, 2, 6, 3, 7]]])).all()


def test_packed_codes_come_apart_in_their_order(mma_host, reference):
    codes = every_code_at_every_place()
    got = values(reference, widen(mma_host, pack(mma_host, codes), packed=1))
    assert (got == reference.E2M1[codes]).all()
    assert (np.signbit(got) == np.signbit(reference.E2M1[codes])).all()


def test_packing_uses_every_bit_once(mma_host):
    codes = np.zeros((32, 8), np.uint8)
    for bit in range(32):
        codes[bit, bit // 4] = 1 << (bit % 4)
    assert sorted(pack(mma_host, codes).tolist()) == [1 << bit for bit in range(32)]


@pytest.mark.parametrize(("wide", "scales"), [(1, 256), (0, 128)])
def test_every_code_under_every_scale_is_exact_in_bf16(mma_host, reference, wide, scales):
    out = np.empty((256, 16), np.uint16)
    mma_host.scaled_table(pointer(out), ctypes.c_int(wide))
    want = reference.decode(np.arange(16)[None, :], np.arange(scales)[:, None])
    got = reference.widen(out[:scales])
    exact = np.where(np.abs(want) >= 2.0**128, np.copysign(np.inf, want), want)
    assert np.array_equal(got, exact, equal_nan=True)
    assert (np.signbit(got) == np.signbit(exact))[:255].all()


def test_the_fast_way_is_wrong_beyond_its_scales(mma_host, reference):
    out = np.empty((256, 16), np.uint16)
    mma_host.scaled_table(pointer(out), ctypes.c_int(0))
    got = reference.widen(out[129:])
    want = reference.decode(np.arange(16)[None, :], np.arange(129, 256)[:, None])
    assert not np.array_equal(got, want, equal_nan=True)
