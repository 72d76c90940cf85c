"""The GPU twin of the SM12x grouped GEMM, as far as no GPU is needed: its edits fit the tree, its judge can say no."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from sparkforge.core.paths import ROOT
from sparkforge.core.store import Store
from sparkforge.git.of_store import git_of
from sparkforge.inputs.recipes import load_stack
from sparkforge.patches import trees

TWIN = ROOT / "tools/gpu/flashinfer/twin"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(TWIN))

    def load_(name):
        sys.modules.pop(name, None)
        return importlib.import_module(name)

    return load_


@pytest.fixture
def edits(load):
    return load("edits")


@pytest.fixture
def judge(load):
    return load("judge")


@pytest.fixture(scope="module")
def patched(tmp_path_factory):
    """Copies a file of the patched tree out of the store."""
    store, stack, folder = Store.open(), load_stack(), tmp_path_factory.mktemp("tree")
    tree = trees.of(store, stack, "flashinfer")

    def copy(path: str) -> Path:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(git_of(store).run("cat-file", "blob", f"{tree.id}:{path}"))
        return folder

    return copy


@pytest.mark.online
def test_every_edit_still_fits_the_patched_tree(edits, patched, tmp_path):
    paths = {edit.path for edit in (*edits.TWIN, *edits.PLANTED)}
    for path in paths:
        tree = patched(path)
    folders = edits.overlay(tree, tmp_path)
    written = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert len(written) == len(paths) == 6
    text = "".join(file.read_text() for file in written)
    assert text.count("sparkforge::twin::") == 3
    assert {f"SPARKFORGE_PLANTED == {i}" in text for i in (1, 2, 3, 5, 6)} == {True}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("begin x end", "'old' stands 0 times"),
        ("begin old old end", "'old' stands 2 times"),
        ("old end", "'begin' stands 0 times"),
        ("begin old begin end", "'begin' stands 2 times"),
        ("begin old", "no 'end' after 'begin'"),
    ],
)
def test_a_tree_that_is_another_is_refused(edits, text, said):
    edit = edits.Edit(path="a.hpp", why="a reason", start="begin", end="end", old="old", new="new")
    with pytest.raises(edits.EditError, match=said):
        edit.apply(text)


def test_an_edit_stays_in_its_region(edits):
    edit = edits.Edit(path="a.hpp", why="a reason", start="begin", end="end", old="old", new="new")
    assert edit.apply("old begin old end old") == "old begin new end old"


def comparison(judge, **other):
    line = {
        "case": "edges", "tile": "128x32x128", "swap_ab": True, "fusion": "NONE", "experts": 21, "rows": 1756,
        "n": 2944, "hidden": 2880, "k": 2944, "top_k": 4, "compared": 1756 * 2944, "wrong": 0, "beyond": 0,
        "inexact": 1756 * 2944, "worst": 0.9, "first": -1, "guarded": True,
    }  # fmt: skip
    line |= other
    return line | {"compared": other.get("compared", judge.outputs(line))}


def everything(judge):
    return [
        comparison(judge, case=case, tile=tile, swap_ab=swap, fusion=fusion)
        for case in judge.CASES
        for tile, swap, fusion in judge.KERNELS
    ]


def test_a_run_of_everything_passes(judge):
    assert judge.judge(everything(judge)) == []


@pytest.mark.parametrize(
    "planted",
    [
        {"wrong": 1},
        {"beyond": 1},
        {"guarded": False},
        {"compared": 0},
        {"compared": 1756 * 2944 - 1},
        {"fusion": "FINALIZE", "compared": 1756 * 2944},
        {"inexact": 0},
    ],
)
def test_one_wrong_comparison_fails(judge, planted):
    assert judge.wrong(comparison(judge)) == []
    assert len(judge.wrong(comparison(judge, **planted))) == 1


def test_a_kernel_that_did_not_run_fails(judge):
    lines = everything(judge)
    assert judge.judge(lines[1:]) == ["every 128x32x128 True NONE: run 0 times"]
    assert judge.judge([*lines, lines[0]]) == ["every 128x32x128 True NONE: run 2 times"]
    assert judge.judge([]) != []


def test_a_defect_that_passes_is_a_failure(judge):
    seen = comparison(judge, wrong=5000, beyond=5000)
    assert judge.unseen("rows", [seen], 1) == []
    assert judge.unseen("rows", [], 1) != []
    assert judge.unseen("rows", [comparison(judge)], 1) != []
    assert judge.unseen("rows", [comparison(judge, wrong=5000)], 1) != [], "only the model differs, not the values"
    assert judge.unseen("output", [comparison(judge, wrong=1, beyond=0)], 1, least=1) == []


def whole_op(judge, **other):
    first = [tile + swap for tile in judge.TILES for swap in ("", " swap_ab")]
    lines = [
        {"tokens": tokens, "gemm1": one, "gemm2": two + final, "compared": 2944, "beyond": 0, "error": 0.003}
        for tokens in judge.TOKENS
        for one in first
        for two in first
        for final in ("", " finalize")
    ]
    return [lines[0] | other, *lines[1:]]


def test_the_whole_op_is_judged(judge):
    lines = whole_op(judge)
    assert len(lines) == 3 * 6 * 12
    assert judge.pairs(lines) == []
    assert len(judge.pairs(lines[1:])) == 1
    assert len(judge.pairs([*lines, lines[0]])) == 1
    for planted in ({"beyond": 1}, {"error": 0.02}, {"error": float("nan")}, {"error": 0.0}, {"compared": 0}):
        assert len(judge.pairs(whole_op(judge, **planted))) == 1, planted
    assert len(judge.pairs(whole_op(judge, gemm1="256x128x128"))) == 2, "another tactic, and one missing"
    assert judge.unseen_by_op("bias2", [lines[0] | {"beyond": 2000}]) == []
    assert judge.unseen_by_op("bias2", [lines[0] | {"beyond": 5}]) != []
    assert judge.unseen_by_op("bias2", []) != []


def test_a_start_that_must_work_and_does_not_is_a_failure(judge):
    tried = [{"start_bytes": start, "copy": "right" if start % 16 == 0 else "refused"} for start in range(0, 32, 4)]
    assert judge.starts(tried) == []
    assert judge.starts(tried[:-1]) != []
    assert judge.starts([*tried, {"start_bytes": 32, "copy": "refused"}]) != []
    assert judge.starts([*tried, {"start_bytes": 2, "copy": "not tried"}]) != []


def test_each_tile_is_compiled_in_every_variant(load, judge):
    compiling = load("compiling")
    made = [(f"128x{kernel.tile_n}x128", kernel.swap_ab, kernel.fusion) for kernel in compiling.KERNELS]
    assert sorted(made) == sorted(judge.KERNELS)
    assert len({kernel.name for kernel in (*compiling.KERNELS, *compiling.DEFECTS)}) == len(compiling.KERNELS) + len(
        compiling.DEFECTS
    )
    assert {kernel.planted for kernel in compiling.DEFECTS} == {1, 2, 3, 4, 5, 6}
