"""F-05: every MoE tactic that is offered on SM12x has a case in the dispatch and a compiled kernel."""

from __future__ import annotations

import subprocess
from typing import NamedTuple

import pytest

KERNELS = "csrc/nv_internal/tensorrt_llm/kernels/cutlass_kernels"


class Tactic(NamedTuple):
    types: str  # "fp8xfp4/121"
    gemm: str
    id: str
    tile: str
    swap_ab: bool
    finalize: bool
    kernel: str  # "128x128x128 swap_ab", or "refused"


def offered(tree, host, cut, compile_host, moe_flags, folder, *, fast: bool) -> list[Tactic]:
    text = cut(
        tree / KERNELS / "moe_gemm/moe_gemm_template_dispatch.h",
        "::getTmaWarpSpecializedConfigs(\n    int sm, bool supports_finalize_fusion) {",
        start="\ntemplate <",
        end="\n}\n",
    )
    (folder / "tactic_list.inc").write_text(text)
    common = tree / "csrc/nv_internal/cpp/common"
    program = compile_host(
        host / "moe_tactics.cpp",
        tree / KERNELS / "cutlass_heuristic.cpp",
        *[common / f"{name}.cpp" for name in ("stringUtils", "tllmException", "logger")],
        flags=[
            *moe_flags,
            f"-I{folder}",
            *(["-DFAST_BUILD"] if fast else []),
        ],
    )
    out = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    lines = [line.split(maxsplit=6) for line in out.splitlines()]
    return [Tactic(*words[:4], words[4] == "swap_ab=1", words[5] == "finalize=1", words[6]) for words in lines]


@pytest.fixture(scope="module", params=[False, True], ids=["full", "fast-build"])
def tactics(request, tree, host, cut, compile_host, moe_flags, tmp_path_factory) -> list[Tactic]:
    folder = tmp_path_factory.mktemp("moe")
    found = offered(tree, host, cut, compile_host, moe_flags, folder, fast=request.param)
    assert {t.types for t in found} == {f"{pair}/{sm}" for pair in ("fp8xfp4", "fp4xfp4") for sm in (120, 121)}
    return found


def test_every_offered_tactic_is_dispatched(tactics):
    refused = [f"{t.types} GEMM{t.gemm} tactic {t.id} ({t.tile})" for t in tactics if t.kernel == "refused"]
    assert not refused, f"{len(refused)} of {len(tactics)} offered tactics throw: {refused}"


def test_a_tactic_reaches_the_kernel_that_it_names(tactics):
    for tactic in tactics:
        words = tactic.kernel.split()
        if words == ["refused"]:
            continue
        assert ("swap_ab" in words, "finalize" in words) == (tactic.swap_ab, tactic.finalize)
        assert words[0].rsplit("x", 1)[0] == tactic.tile.rsplit("x", 1)[0]


def test_every_dispatched_kernel_is_compiled(tactics, toolkit):
    from flashinfer.jit.gemm.cutlass import generate_kernels as generator

    compiled = set()
    for op in generator.generate_sm120_grouped_gemm_operations(is_arch_enabled=True):
        types = "fp8xfp4" if op.act_type != op.weight_type else "fp4xfp4"
        finalize = op.epi_fusion == generator.TrtLlm_EpilogueFusion.epilogue_fusion_finalize
        kernel = "x".join(map(str, op.cta_shape)) + " swap_ab" * op.swap_ab + " finalize" * finalize
        compiled.add((types, kernel))
    for tactic in tactics:
        if tactic.kernel != "refused":
            assert (tactic.types.split("/")[0], tactic.kernel) in compiled, f"{tactic} has no instantiation"


def test_the_first_tactic_is_128x128_without_swap(tactics):
    for gemm in "12":
        first = next(t for t in tactics if t.types == "fp8xfp4/121" and t.gemm == gemm)
        assert (first.kernel, first.id) == ("128x128x128", "0"), "the default of untuned shapes changed"
