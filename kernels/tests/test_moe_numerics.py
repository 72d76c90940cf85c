"""Numerics and layouts of the expert kernel on the CPU, against NumPy and against what vLLM's own functions lay out."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

KERNELS = Path(__file__).resolve().parent.parent
MARLIN, CUTLASS = 0, 1
ALPHA, LIMIT = 1.702, 7.0


@pytest.fixture(scope="session")
def moe(tmp_path_factory):
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler: the numerics were NOT tested")
    library = tmp_path_factory.mktemp("moe") / "moe_host.so"
    command = [compiler, "-std=c++17", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", f"-I{KERNELS}/include"]
    subprocess.run([*command, "-o", library, KERNELS / "tests" / "host" / "moe_host.cc"], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="session")
def upstream():
    """What upstream_marlin.py wrote."""
    return np.load(KERNELS / "tests" / "data" / "marlin.npz")


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def test_codes_widen_to_their_value_times_2_to_the_minus_126(moe, reference):
    words = np.random.default_rng(0).integers(0, 1 << 32, 4096, dtype=np.uint32)
    out, plain = np.empty((4096, 8), np.uint16), np.empty((4096, 8), np.uint16)
    moe.widen_words(pointer(words), pointer(out), pointer(plain), ctypes.c_int64(words.size))
    codes = (words[:, None] >> np.array([0, 16, 4, 20, 8, 24, 12, 28])) & 15
    assert (reference.widen(out) * 2.0**126 == reference.E2M1[codes]).all()
    assert (out == plain).all(), "moe::widen and mxfp4::widen_nibbles are to give the same bits"


def test_the_factor_of_every_scale(moe, reference):
    fast, large = np.empty(256, np.float32), np.empty(256, np.float32)
    moe.factors(pointer(fast), pointer(large))
    assert (fast[:128].astype(np.float64) == reference.e8m0(np.arange(128)) * 2.0**26).all()
    assert (large[:255].astype(np.float64) == reference.e8m0(np.arange(255))).all()
    assert np.isnan(large[255])
    for byte in range(4):
        assert moe.is_large(ctypes.c_uint32(128 << (8 * byte)))
    assert not moe.is_large(ctypes.c_uint32(0x7F7F7F7F))


def test_every_bf16_is_prescaled_exactly_or_said_to_be_too_big(moe, reference):
    out, big = np.empty(65536, np.uint16), np.empty(65536, np.uint8)
    moe.prescale_all(pointer(out), pointer(big))
    bits = np.arange(65536, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        value, scaled = reference.widen(bits), reference.widen(out)
    finite = np.isfinite(value)
    assert (big == (finite & (np.abs(value) >= 2.0**27))).all()
    exact = finite & (big == 0)
    assert (scaled[exact] == value[exact] * 2.0**100).all()
    assert np.array_equal(scaled[~finite], value[~finite], equal_nan=True)


def test_swiglu(moe):
    some = np.array(
        [-np.inf, -1e30, -200, -7.1, -3, -0.5, -0.0, 0, 1e-30, 0.5, 6.9, 7, 7.1, 1e30, np.inf, np.nan], np.float32
    )
    gate, up = (np.ascontiguousarray(a) for a in np.meshgrid(some, some))
    out = np.empty_like(gate)
    moe.swiglu(
        pointer(gate),
        pointer(up),
        pointer(out),
        ctypes.c_int64(gate.size),
        ctypes.c_float(ALPHA),
        ctypes.c_float(LIMIT),
    )
    g, u = np.minimum(gate.astype(np.float64), LIMIT), np.clip(up.astype(np.float64), -LIMIT, LIMIT)
    with np.errstate(over="ignore", invalid="ignore"):
        want = (u + 1) * g / (1 + np.exp(-g * ALPHA))
    assert np.allclose(out, want, rtol=1e-6, atol=1e-30, equal_nan=True)
    assert np.isnan(out[:, -1]).all(), "a NaN of gate stays one"
    assert np.isnan(out[-1]).all(), "and of up"


@pytest.mark.parametrize("layout", [MARLIN, CUTLASS])
def test_positions_are_a_permutation_of_a_block(moe, layout):
    t, place, back = (np.empty(32, np.int32) for _ in range(3))
    moe.positions(layout, pointer(t), pointer(place), pointer(back))
    assert back.tolist() == list(range(32))
    assert len(set(zip(t.tolist(), place.tolist(), strict=True))) == 32


def test_biases_stand_where_upstream_puts_them(moe, upstream):
    rows = upstream["bias"].size
    where = np.empty(rows, np.int64)
    moe.bias_rows(pointer(where), ctypes.c_int64(rows))
    assert (upstream["bias"][where] == np.arange(rows)).all()


def marlin_unit(moe, packed, scales, rows, where):
    tile, ku = where
    values, scale = np.full((64, 64), np.nan, np.float32), np.zeros((64, 64), np.uint8)
    moe.marlin_unit(pointer(packed), pointer(scales), rows, tile, ku, pointer(values), pointer(scale))
    return values, scale


def test_the_fragments_are_the_weights_that_upstream_packed(moe, upstream, reference):
    codes, scales = upstream["codes"], upstream["scales"]
    rows, k = codes.shape
    for tile in range(rows // 64):
        for ku in range(k // 64):
            values, scale = marlin_unit(moe, upstream["packed"], upstream["packed_scales"], rows, (tile, ku))
            here = np.s_[64 * tile : 64 * tile + 64, 64 * ku : 64 * ku + 64]
            assert (values == reference.E2M1[codes[here]]).all()
            assert (scale == np.repeat(scales, 32, axis=1)[here]).all()


def test_another_order_would_be_seen(moe, upstream, reference):
    packed = np.ascontiguousarray(upstream["packed"].reshape(-1, 16)[:, ::-1])
    scales = np.ascontiguousarray(upstream["packed_scales"][:, ::-1])
    values, scale = marlin_unit(moe, packed, scales, upstream["codes"].shape[0], (0, 0))
    assert (values != reference.E2M1[upstream["codes"][:64, :64]]).any()
    assert (scale != np.repeat(upstream["scales"], 32, axis=1)[:64, :64]).any()


def swizzled(scales):
    """128x4 order: 512 bytes for 128 rows and 4 blocks; rows r, r + 32, r + 64, r + 96 side by side."""
    rows, blocks = scales.shape
    return np.ascontiguousarray(scales.reshape(rows // 128, 4, 32, blocks // 4, 4).transpose(0, 3, 2, 1, 4)).reshape(-1)


def test_swizzled_scales_stand_where_the_definition_puts_them(moe):
    rows, blocks = 256, 8
    numbers = np.arange(rows * blocks, dtype=np.int64).reshape(rows, blocks)
    where = np.empty((rows, blocks), np.int64)
    moe.swizzle(pointer(where), ctypes.c_int64(rows), ctypes.c_int64(blocks))
    assert (swizzled(numbers)[where] == numbers).all()


def test_the_fragments_of_rows_up_then_gate(moe, reference):
    rng = np.random.default_rng(1)
    inter, k = 128, 256
    codes = rng.integers(0, 16, (2 * inter, k), dtype=np.uint8)
    scales = rng.integers(0, 256, (2 * inter, k // 32), dtype=np.uint8)
    packed = np.ascontiguousarray(codes[:, 0::2] | codes[:, 1::2] << 4)
    laid = swizzled(scales)
    for tile in range(inter // 32):
        row = np.arange(64)
        row_of = np.where(row % 2 == 0, inter, 0) + 32 * tile + row // 2  # gate of an output, then its up
        for ku in range(k // 64):
            values, scale = np.full((64, 64), np.nan, np.float32), np.zeros((64, 64), np.uint8)
            moe.cutlass_unit(pointer(packed), pointer(laid), pointer(row_of), k, ku, pointer(values), pointer(scale))
            here = np.s_[row_of, 64 * ku : 64 * ku + 64]
            assert (values == reference.E2M1[codes[here]]).all()
            assert (scale == np.repeat(scales, 32, axis=1)[here]).all()


@pytest.mark.parametrize(
    ("units", "parts"), [(1, 1), (7, 7), (100, 33), (16200, 132), (16200, 48), (133, 132), (64800, 132)]
)
def test_shares_cover_the_line_once(moe, units, parts):
    first, part = np.empty(parts + 1, np.int32), np.empty(units, np.int32)
    moe.shares(units, parts, pointer(first), pointer(part))
    assert first[0] == 0
    assert first[-1] == units
    sizes = np.diff(first)
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1
    assert (part == np.repeat(np.arange(parts), sizes)).all()
