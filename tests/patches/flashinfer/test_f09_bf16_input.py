"""F-09: BF16 input reaches the MXFP8 x MXFP4 kernels, quantized while it is expanded, and no other kernels."""

from __future__ import annotations

import subprocess

import pytest

BINDING = "csrc/fused_moe/cutlass_backend/flashinfer_cutlass_fused_moe_binding.cu"
KERNELS = "csrc/fused_moe/cutlass_backend/cutlass_fused_moe_kernels.cuh"
INSTANCES = "csrc/fused_moe/cutlass_backend/cutlass_fused_moe_instantiation.cu"


@pytest.fixture(scope="module")
def chosen(tree, host, cut, compile_host, tmp_path_factory) -> dict[tuple[str, str, bool], str]:
    """(activation, output, use_mxfp8_act_scaling) to what the binding makes for it, with FP4 weights."""
    folder = tmp_path_factory.mktemp("binding")
    parts = {
        "constructor.inc": (
            "  template <typename TypeAct, typename TypeWeight, bool NeedQuant = false, bool IsMXFPX = false>",
            "\n  }\n\n  void runMoe(TensorView output",
        ),
        "predicates.inc": ("  bool isFp8Quant() const {", "\n};\n"),
        "profiled_type.inc": ("      auto activation_dtype =", "dl_int64 : activation_dtype;"),
    }
    for name, (start, end) in parts.items():
        text = cut(tree / BINDING, start, start=start, end=end)
        text = text.removesuffix("void runMoe(TensorView output").removesuffix("\n};\n")
        (folder / name).write_text(text)
    program = compile_host(host / "moe_types.cpp", flags=[f"-I{folder}"])
    out = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    table = {}
    for line in out.splitlines():
        activation, output, mxfp8, made = line.split(maxsplit=3)
        table[activation, output, mxfp8 == "1"] = made
    return table


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_16_bit_input_gets_the_runner_that_quantizes_it(chosen, dtype):
    made = chosen[dtype, dtype, True]
    assert made == f"e4m3xe2m1,out={dtype},in={dtype} inner=16 profiled=e4m3 nvfp4=0 mxfp4_mxfp8=1", (
        f"{dtype} input with MXFP8 scaling runs {made}"
    )


def test_quantized_input_gets_the_runner_that_it_had(chosen):
    for output in ("bf16", "f16"):
        made = chosen["e4m3", output, True]
        assert made == f"e4m3xe2m1,out={output},in=e4m3 inner=16 profiled=e4m3 nvfp4=0 mxfp4_mxfp8=1"
        made = chosen["e4m3", output, False]
        assert made == f"e4m3xe2m1,out={output},in=e4m3 inner=16 profiled=e4m3 nvfp4=0 mxfp4_mxfp8=0"


def test_nvfp4_is_as_it_was(chosen):
    for output in ("bf16", "f16"):
        made = chosen[output, output, False]
        assert made == f"e2m1xe2m1,out={output},in={output} inner=16 profiled=int64 nvfp4=1 mxfp4_mxfp8=0"
        made = chosen["int64", output, False]
        assert made == f"e2m1xe2m1,out={output},in=e2m1 inner=16 profiled=int64 nvfp4=1 mxfp4_mxfp8=0"


def test_output_of_another_type_is_refused(chosen):
    for activation, output in (("bf16", "f16"), ("f16", "bf16")):
        made = chosen[activation, output, True]
        assert made == "refused", f"{activation} input for {output} output runs {made}, which reads it as {output}"


def test_the_runner_is_compiled(tree):
    text = " ".join((tree / INSTANCES).read_text().split())
    for dtype in ("half", "__nv_bfloat16"):
        assert f"template class CutlassMoeFCRunner<__nv_fp8_e4m3, __nv_fp4_e2m1, {dtype}, {dtype}>;" in text


def test_scales_of_quantized_input_are_not_asked_for(tree):
    text = (tree / BINDING).read_text()
    assert "!isMxfp8ActScalingQuant() || needsMxfp8Quant() || input_sf.has_value()" in text
    assert "!needsMxfp8Quant() || !input_sf.has_value()" in text, "scales that nothing reads are taken without a word"


def test_expansion_quantizes_as_mxfp8_quantize_does(tree):
    """One device function makes the bytes and scales of both; it is called with blocks of 32 and real E8M0 scales."""
    kernels = (tree / KERNELS).read_text()
    assert "cvt_warp_fp16_to_mxfp8<GemmOutputType, VecSize, CVT_ELTS_PER_THREAD>(vec, SFout)" in kernels
    op = (tree / "csrc/nv_internal/tensorrt_llm/kernels/quantization.cuh").read_text()
    assert "cvt_warp_fp16_to_mxfp8<Type, SF_VEC_SIZE, ELTS_PER_THREAD>(in_vec, sf_out)" in op
