"""F-08: an untuned MoE runs with a tile that fits its tokens, the user may name one, and no stale choice is read."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess

import pytest
import torch

WIDE = "128x128x128"
TILES = [WIDE, "128x32x128", "128x64x128"]
BINDING = "csrc/fused_moe/cutlass_backend/flashinfer_cutlass_fused_moe_binding.cu"


def names(moe, ids):
    return [None if i == -1 else moe.compiled.get_tactic_name(i) for i in ids]


def default(tile):
    return [f"{tile} swap_ab=1 finalize=0"] * 2


def refusal(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    raise AssertionError("it was accepted")


@pytest.mark.parametrize(
    ("tokens", "tile"),
    # 128 experts, 4 of them for a token: at most every token, at the average one in 32, is at one expert.
    [(1, "128x32x128"), (32, "128x32x128"), (33, "128x32x128"), (512, "128x32x128"), (513, "128x64x128"),
     (1024, "128x64x128"), (1025, None), (8192, None)],
)  # fmt: skip
def test_an_untuned_shape_gets_the_narrowest_tile_that_holds_its_rows(fake_moe, tokens, tile):
    moe = fake_moe(TILES)
    assert names(moe, moe.run(tokens)) == (default(tile) if tile else [None, None])


@pytest.mark.parametrize(("experts", "tile"), [(4, "128x64x128"), (128, "128x32x128")])
def test_rows_are_counted_for_an_expert(fake_moe, experts, tile):
    moe = fake_moe(TILES)
    assert names(moe, moe.run(tokens=64, experts=experts)) == default(tile)


def test_experts_on_other_ranks_count(fake_moe):
    moe = fake_moe(TILES)
    assert names(moe, moe.run(tokens=64, experts=16, ep_size=8)) == default("128x32x128")


def test_a_tactic_that_was_tuned_wins(fake_moe, monkeypatch):
    moe = fake_moe(TILES)
    moe.tactics = {"trtllm::fused_moe::gemm1": 0, "trtllm::fused_moe::gemm2": 9}
    assert moe.run(1) == [0, 9]
    assert names(moe, moe.run(1)) != default("128x32x128"), "the tuned tactics are the defaults: nothing is tested"
    fresh = fake_moe(TILES)
    fresh.tactics = {"trtllm::fused_moe::gemm1": 0, "trtllm::fused_moe::gemm2": -1}
    assert names(fresh, fresh.run(1)) == [fresh.compiled.get_tactic_name(0), default("128x32x128")[1]]


def test_with_the_wide_tile_alone_the_default_is_the_runners_own(fake_moe):
    moe = fake_moe([WIDE])
    assert moe.run(1) == [-1, -1]
    assert importlib.util.find_spec("flashinfer.fused_moe.tile_choice") is not None, "no tile is chosen at all"


@pytest.mark.parametrize("asked", ["128x64", "128x64x128", " 128X64 "])
@pytest.mark.parametrize("tokens", [1, 8192])
def test_the_user_names_a_tile(fake_moe, monkeypatch, asked, tokens):
    monkeypatch.setenv("FLASHINFER_MOE_TILE", asked)
    moe = fake_moe(TILES)
    assert names(moe, moe.run(tokens)) == default("128x64x128")


def test_the_user_names_the_wide_tile(fake_moe, monkeypatch):
    monkeypatch.setenv("FLASHINFER_MOE_TILE", "128x128")
    moe = fake_moe(TILES)
    assert names(moe, moe.run(1)) == [f"{WIDE} swap_ab=0 finalize=0"] * 2


def test_a_named_tile_is_all_that_is_tuned(fake_moe, monkeypatch):
    monkeypatch.setenv("FLASHINFER_MOE_TILE", "128x32")
    moe = fake_moe(TILES)
    moe.run(1)
    for _, runner, _ in moe.chosen:
        tried = names(moe, runner.get_valid_tactics([], None))
        assert tried
        assert all(name.startswith("128x32x128 ") for name in tried)


@pytest.mark.parametrize("asked", ["64x128", "128x16", "small", "128"])
def test_an_unknown_tile_is_an_error_that_lists_those_that_exist(fake_moe, monkeypatch, asked):
    monkeypatch.setenv("FLASHINFER_MOE_TILE", asked)
    moe = fake_moe(TILES)
    message = refusal(lambda: moe.run(1))
    assert asked in message
    for word in ("FLASHINFER_MOE_TILE", "auto", *TILES):
        assert word in message


@pytest.mark.parametrize("asked", ["auto", "", "AUTO"])
def test_auto_is_the_default(fake_moe, monkeypatch, asked):
    monkeypatch.setenv("FLASHINFER_MOE_TILE", asked)
    moe = fake_moe(TILES)
    assert names(moe, moe.run(1)) == default("128x32x128")


def test_a_change_of_the_variable_takes_effect(fake_moe, monkeypatch):
    moe = fake_moe(TILES)
    moe.run(1)
    monkeypatch.setenv("FLASHINFER_MOE_TILE", "128x64")
    assert names(moe, moe.run(1)) == default("128x64x128")


def keys(moe):
    moe.run(1)
    found = [extras for _, _, extras in moe.chosen]
    moe.chosen.clear()
    return found


def test_the_tuners_key_tells_lists_of_tactics_apart(fake_moe, monkeypatch):
    lists = [keys(fake_moe(TILES)), keys(fake_moe([WIDE])), keys(fake_moe(list(reversed(TILES))))]
    monkeypatch.setenv("FLASHINFER_MOE_TILE", "128x32")
    lists.append(keys(fake_moe(TILES)))
    for gemm in (0, 1):
        assert len({repr(found[gemm]) for found in lists}) == len(lists), "a stale tactic id would be used"


def test_the_tuners_key_is_stable(fake_moe):
    assert keys(fake_moe(TILES)) == keys(fake_moe(TILES))


def test_the_list_of_tactics_is_not_hashed_in_every_call(fake_moe, monkeypatch):
    hashed = []
    tile_choice = importlib.import_module("flashinfer.fused_moe.core").__dict__.get("tile_choice")
    assert tile_choice is not None, "no tile is chosen at all"

    class Counted(tile_choice.Tactic):
        def __hash__(self):
            hashed.append(self.id)
            return super().__hash__()

    monkeypatch.setattr(tile_choice, "Tactic", Counted)
    moe = fake_moe(TILES)
    for _ in range(2):
        moe.run(1)
        for _, runner, _ in moe.chosen:
            hash(runner)
        moe.chosen.clear()
        seen, hashed[:] = list(hashed), []
    assert not seen, f"{len(seen)} tactics were hashed again in a call like the last"


def test_a_saved_choice_is_not_read_for_another_list_of_tactics(tmp_path):
    from flashinfer.autotuner import AutoTuner, TunableRunner, TuningConfig

    class Runner(TunableRunner):
        def __init__(self, tactics):
            self.tactics = tactics

        def get_valid_tactics(self, inputs, profile):
            return [0, 1]

        def get_cache_key_extras(self, inputs):
            return (self.tactics,)

        def forward(self, inputs, tactic=-1, do_preparation=False, **kwargs):
            return None

    inputs, config = [torch.zeros(4, 8)], TuningConfig()
    shapes = tuple(tensor.size() for tensor in inputs)
    tuner = AutoTuner()
    key = AutoTuner._get_cache_key("op", Runner("old"), shapes, config, ("old",))
    tuner.profiling_cache[key] = (0, 1, None)
    tuner.save_configs(str(tmp_path / "saved.json"))

    later = AutoTuner()
    assert later.load_configs(str(tmp_path / "saved.json"))
    hit, _, tactic, _ = later.search_cache("op", [Runner("old")], shapes, config, inputs=inputs)
    assert (hit, tactic) == (True, 1)
    hit, *_ = later.search_cache("op", [Runner("new")], shapes, config, inputs=inputs)
    assert not hit, "an id of the old list of tactics was read for the new one"


def test_the_compiled_names_are_the_ones_that_are_read(tree, host, cut, compile_host, moe_flags, tmp_path):
    assert "getTacticName(int64_t id)" in (tree / BINDING).read_text(), "the binding names no tactics"
    name = "tvm::ffi::String getTacticName(int64_t id)"
    (tmp_path / "get_tactic_name.inc").write_text(cut(tree / BINDING, name, start=name, end="\n  }\n"))
    program = compile_host(
        host / "tactic_names.cpp",
        *[tree / f"csrc/nv_internal/cpp/common/{part}.cpp" for part in ("stringUtils", "tllmException")],
        flags=[*moe_flags, f"-I{tmp_path}"],
    )
    out = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    tile_choice = importlib.import_module("flashinfer.fused_moe.tile_choice")
    read = [tile_choice.Tactic.parse(i, text) for i, text in enumerate(out[:-1])]
    assert [(t.tiles[1], t.swap_ab, t.finalize) for t in read[:4]] == [
        (WIDE, swap_ab, finalize) for swap_ab in (False, True) for finalize in (False, True)
    ]
    assert read[4].m == 0, "a kernel for older architectures was taken for a tile"
    assert out[-1] == "refused"
