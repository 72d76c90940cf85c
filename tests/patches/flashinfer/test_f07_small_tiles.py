"""F-07: the MoE of FP8 x FP4 on SM12x has the tiles 128x32 and 128x64, in every variant, and others do not."""

from __future__ import annotations

import importlib.util
import itertools

import pytest


@pytest.fixture(scope="module")
def generated():
    """(types, tile, swap_ab, finalize, output) of every kernel that is instantiated for SM12x."""
    from flashinfer.jit.gemm.cutlass import generate_kernels as generator

    names = {generator.DataType.f16: "f16", generator.DataType.bf16: "bf16"}
    return [
        (
            "fp8xfp4" if op.act_type != op.weight_type else "fp4xfp4",
            "x".join(map(str, op.cta_shape)),
            op.swap_ab,
            op.epi_fusion == generator.TrtLlm_EpilogueFusion.epilogue_fusion_finalize,
            names[op.output_type],
        )
        for op in generator.generate_sm120_grouped_gemm_operations(is_arch_enabled=True)
    ]


def test_each_small_tile_is_compiled_in_every_variant(generated):
    found = {kernel[1:] for kernel in generated if kernel[0] == "fp8xfp4"}
    wanted = set(
        itertools.product(("128x32x128", "128x64x128", "128x128x128"), (False, True), (False, True), ("f16", "bf16"))
    )
    assert found == wanted, f"missing: {sorted(wanted - found)}, extra: {sorted(found - wanted)}"


def test_no_kernel_is_compiled_twice(generated):
    assert len(generated) == len(set(generated))
    assert len([kernel for kernel in generated if kernel[0] == "fp8xfp4"]) == 24, "the small tiles are not all there"


def test_fp4_by_fp4_has_the_tiles_that_it_had(generated):
    found = {kernel[1] for kernel in generated if kernel[0] == "fp4xfp4"}
    assert found == {"128x128x128", "128x128x256", "256x128x128", "128x256x128"}


@pytest.fixture(scope="module")
def offered(tree, host, cut, compile_host, moe_flags, tmp_path_factory):
    """The tactics that the runner offers and what they dispatch to, as F-05's test enumerates them."""
    folder = tmp_path_factory.mktemp("moe")
    path = __file__.replace("test_f07_small_tiles", "test_f05_sm120_tactics")
    spec = importlib.util.spec_from_file_location("test_f05_sm120_tactics", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.offered(tree, host, cut, compile_host, moe_flags, folder, fast=False)


@pytest.mark.parametrize("sm", ["120", "121"])
def test_each_small_tile_is_offered_and_dispatched(offered, sm):
    for gemm, tile, swap_ab, finalize in itertools.product(
        "12", ("128x32x128", "128x64x128"), (False, True), (False, True)
    ):
        found = [
            tactic.kernel
            for tactic in offered
            if (tactic.types, tactic.gemm, tactic.tile) == (f"fp8xfp4/{sm}", gemm, tile)
            and (tactic.swap_ab, tactic.finalize) == (swap_ab, finalize)
        ]
        wanted = [tile + " swap_ab" * swap_ab + " finalize" * finalize] if gemm == "2" or not finalize else []
        assert found == wanted, f"GEMM{gemm} {tile} swap_ab={swap_ab} finalize={finalize}"


def test_the_wide_tile_stays_the_first_tactic(offered):
    for gemm in "12":
        first = next(tactic for tactic in offered if (tactic.types, tactic.gemm) == ("fp8xfp4/121", gemm))
        assert first.tile == "128x128x128", "what runs where no tile is chosen has changed"
