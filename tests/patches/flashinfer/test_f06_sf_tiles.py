"""F-06: with tiles of 32 and 64 columns every scale factor arrives where the SM12x mainloop looks for it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

MAINLOOP = "3rdparty/cutlass/include/cutlass/gemm/collective/sm120_blockscaled_mma_array_tma.hpp"


class Found(NamedTuple):
    compared: int
    wrong: int
    misaligned: int
    stages: int
    announced: int
    moved: int


@pytest.fixture(scope="module")
def program(tree, host, moe_flags, tmp_path_factory):
    """Compiles the mainloop's tile; a tile that CUTLASS refuses is a failure, another compile error is not."""
    built: dict[tuple[int, bool], tuple[Path, str]] = {}
    shims = host / "shim_mma"
    folders = [flag for flag in moe_flags if flag.startswith("-I") and "shim" not in flag and "nv_internal" not in flag]

    def build(columns: int, *, swapped: bool) -> Path:
        # Tiles of 128 are compiled as ever; where the harness finds nothing to call, small ones are refused.
        assert columns < 128 or "columns_SFB" in (tree / MAINLOOP).read_text(), "no small tiles here"
        key = columns, swapped
        if key not in built:
            out = tmp_path_factory.mktemp("sf") / f"tile{columns}"
            command = [
                "g++", "-std=c++17", "-O1", "-w", "-fpermissive", "-include", str(shims / "device_words.h"),
                f"-I{shims}",
                *folders, f"-DTILE_N={columns}", "-DCUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL",
                *(["-DSWAPPED"] if swapped else []), str(host / "sf_tiles.cpp"), "-o", str(out),
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            built[key] = out, done.stderr if done.returncode != 0 else ""
        out, errors = built[key]
        refused = "TMA requires CTA_Tile and SLayout" in errors
        assert not refused, f"CUTLASS refuses 128x{columns}x128"
        if errors:
            raise RuntimeError(errors[-6000:])
        return out

    return build


def run(program: Path, planted: str = "none") -> Found:
    out = subprocess.run([program, planted], capture_output=True, text=True, check=True).stdout
    return Found(*map(int, out.split()))


TILES = [(32, True), (32, False), (64, True), (128, True)]


@pytest.mark.parametrize(("columns", "swapped"), TILES)
def test_every_scale_factor_of_every_tile_arrives(program, columns, swapped):
    found = run(program(columns, swapped=swapped))
    assert found.compared == 2 * 710 * 12, "five blocks of columns and a part of one, three of depth, two bytes each"
    assert found.wrong == 0, f"{found.wrong} of {found.compared} scale factors are those of other columns"


@pytest.mark.parametrize(("columns", "swapped"), TILES)
def test_every_copy_starts_at_a_multiple_of_16_bytes(program, columns, swapped):
    assert run(program(columns, swapped=swapped)).misaligned == 0, "an illegal instruction on a GPU"


@pytest.mark.parametrize(("columns", "swapped"), TILES)
def test_a_stage_announces_the_bytes_that_arrive(program, columns, swapped):
    found = run(program(columns, swapped=swapped))
    assert found.announced == found.moved == 512, "the barrier of a stage would never complete, or too early"
    assert found.stages >= 2


@pytest.mark.parametrize(("planted", "columns"), [("block", 32), ("block", 64), ("shift", 32), ("shift", 64)])
def test_a_planted_wrong_offset_is_seen(program, planted, columns):
    assert run(program(columns, swapped=True), planted).wrong > 3000


@pytest.mark.parametrize("columns", [32, 64])
def test_a_copy_that_starts_inside_of_a_block_is_seen(program, columns):
    assert run(program(columns, swapped=True), "inside").misaligned > 0
