"""Where a weight lies: against upstream's own repacking, against a simulated warp, and our packing in two languages."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from sparkforge.core.store import Store
from sparkforge.inputs.fetch import fetch
from sparkforge.inputs.recipes import load_stack

N, K = 192, 160
PYTHON = Path(__file__).resolve().parent.parent / "python"


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def int64(*values):
    return [ctypes.c_int64(value) for value in values]


@pytest.fixture(scope="module")
def upstream(load):
    pin = load_stack("vllm-0.21").upstreams["vllm"]
    return load("upstream_marlin").load(fetch(Store.open(), pin.sdist, package="vllm"))


@pytest.fixture(scope="module")
def weights():
    rng = np.random.default_rng(11)
    return rng.integers(0, 16, (N, K), dtype=np.uint8), rng.integers(0, 256, (N, K // 32), dtype=np.uint8)


def marlin_bytes(host, codes):
    out = np.zeros(codes.size // 2, np.uint8)
    host.marlin_codes(pointer(codes), pointer(out), *int64(*codes.shape))
    return out


@pytest.mark.online
def test_marlin_codes_lie_as_upstream_lays_them(layouts_host, load, upstream, weights):
    codes = weights[0]
    like = load("upstream_marlin").Like(codes.T.astype(np.int64))
    want = upstream.marlin_weights(like, K, N, 4, upstream.get_weight_perm(4)).numpy()
    assert want.shape == (K // 16, 2 * N)
    assert (marlin_bytes(layouts_host, codes) == want.astype(np.int32).view(np.uint8).ravel()).all()


@pytest.mark.online
def test_marlin_scales_lie_as_upstream_lays_them(layouts_host, load, upstream, weights):
    scales = weights[1]
    permuted = upstream.marlin_permute_scales(load("upstream_marlin").Like(scales.T.copy()), K, N, 32)
    want = upstream.mxfp4_marlin_process_scales(permuted).numpy()
    out = np.zeros_like(want)
    layouts_host.marlin_scales(pointer(scales), pointer(out), *int64(*scales.shape))
    assert (out == want).all()


@pytest.mark.online
def test_marlin_bias_lies_as_upstream_lays_it(layouts_host, load, upstream):
    bias = np.arange(N, dtype=np.uint16)
    want = upstream.marlin_permute_bias(load("upstream_marlin").Like(bias)).numpy()
    out = np.zeros_like(bias)
    layouts_host.marlin_biases(pointer(bias), pointer(out), *int64(N))
    assert (out == want).all()


def test_a_warp_finds_marlins_weights(layouts_host, reference, weights):
    codes = weights[0]
    laid = marlin_bytes(layouts_host, codes).reshape(K // 16, N // 64, 512)
    for k16 in range(K // 16):
        for n64 in range(N // 64):
            out = np.zeros((64, 16), np.uint16)
            layouts_host.warp_of_marlin(pointer(np.ascontiguousarray(laid[k16, n64])), pointer(out))
            want = reference.E2M1[codes[64 * n64 : 64 * n64 + 64, 16 * k16 : 16 * k16 + 16]]
            assert (reference.widen(out) * 2.0**126 == want).all()


def packed(host, codes, scales):
    n, k = codes.shape
    out = np.zeros((n // 16, k // 64, 544), np.uint8)
    host.pack_units(pointer(codes), pointer(scales), pointer(out), *int64(n, k))
    return out


def test_a_warp_finds_our_units(layouts_host, reference):
    rng = np.random.default_rng(12)
    codes, scales = rng.integers(0, 16, (48, 128), dtype=np.uint8), rng.integers(0, 256, (48, 4), dtype=np.uint8)
    units = packed(layouts_host, codes, scales)
    for tile in range(3):
        for unit in range(2):
            out = np.zeros((16, 64), np.uint16)
            layouts_host.warp_of_unit(pointer(np.ascontiguousarray(units[tile, unit])), pointer(out))
            want = reference.E2M1[codes[16 * tile : 16 * tile + 16, 64 * unit : 64 * unit + 64]]
            assert (reference.widen(out) * 2.0**126 == want).all()
            # A lane reads two bytes at 4 g + 2 (block): rows g and g + 8.
            held = units[tile, unit, 512:].reshape(8, 2, 2)
            for g in range(8):
                assert (held[g] == scales[[16 * tile + g, 16 * tile + g + 8], 2 * unit : 2 * unit + 2].T).all()


def test_every_bit_of_a_unit_is_used_once(layouts_host):
    seen = np.zeros((544, 8), int)
    for row in range(16):
        for k in range(64):
            codes, scales = np.zeros((16, 64), np.uint8), np.zeros((16, 2), np.uint8)
            codes[row, k] = 15
            seen += np.unpackbits(packed(layouts_host, codes, scales).ravel()).reshape(544, 8)
    assert (seen[:512] == 1).all()
    assert (seen[512:] == 0).all()


def test_the_python_packing_has_the_same_words(mma_host):
    spec = importlib.util.spec_from_file_location("packing", PYTHON / "sparkforge_kernels" / "packing.py")
    packing = importlib.util.module_from_spec(spec)
    sys.modules["packing"] = packing
    spec.loader.exec_module(packing)
    for place, row in enumerate(packing.word_table()):
        codes = np.zeros((16, 8), np.uint8)
        codes[:, place] = np.arange(16)
        words = np.empty(16, np.uint32)
        mma_host.pack(pointer(codes), pointer(words), ctypes.c_int64(16))
        assert words.tolist() == row


def test_the_python_packing_is_ours(layouts_host, load):
    torch = pytest.importorskip("torch", reason="packing of tensors was NOT tested: no torch")
    sys.path.insert(0, str(PYTHON))
    from sparkforge_kernels.packing import pack  # noqa: PLC0415

    rng = np.random.default_rng(13)
    codes, scales = rng.integers(0, 16, (48, 128), dtype=np.uint8), rng.integers(0, 256, (48, 4), dtype=np.uint8)
    rows = torch.from_numpy(codes[:, 0::2] | (codes[:, 1::2] << 4))
    assert (pack(rows, torch.from_numpy(scales)).numpy() == packed(layouts_host, codes, scales)).all()
    cut = pack(rows[:41], torch.from_numpy(scales[:41])).numpy()
    codes[41:], scales[41:] = 0, 0
    assert (cut == packed(layouts_host, codes, scales)).all()
