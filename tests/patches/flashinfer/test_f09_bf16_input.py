"""F-09: BF16 input reaches the MXFP8 x MXFP4 kernels, quantized while it is expanded, and no other kernels."""

from __future__ import annotations

import re
import subprocess

import pytest

BINDING = "csrc/fused_moe/cutlass_backend/flashinfer_cutlass_fused_moe_binding.cu"
RUN, MIN_LATENCY = "  void runMoe(TensorView output", "  void runMoeMinLantency(TensorView output"


@pytest.fixture(scope="module")
def said(tree, host, cut, compile_host, tmp_path_factory) -> list[list[str]]:
    """What the binding's own text says of every input, as words of lines; see moe_types.cpp."""
    folder = tmp_path_factory.mktemp("binding")
    parts = {
        "constructor.inc": (
            "  template <typename TypeAct, typename TypeWeight, bool NeedQuant = false, bool IsMXFPX = false>",
            f"\n  }}\n\n{RUN}",
        ),
        "predicates.inc": ("  bool isFp8Quant() const {", "\n};\n"),
        "profiled_type.inc": ("      auto activation_dtype =", "dl_int64 : activation_dtype;"),
    }
    for name, (start, end) in parts.items():
        text = cut(tree / BINDING, start, start=start, end=end)
        (folder / name).write_text(text.removesuffix(RUN).removesuffix("\n};\n"))
    for name, start in (("run_checks.inc", RUN), ("min_latency_checks.inc", MIN_LATENCY)):
        body = cut(tree / BINDING, start, start=start, end="\n  }\n")
        checks = re.findall(r"TVM_FFI_ICHECK\([^;]*\binput_sf\.has_value\(\)[^;]*;", body)
        (folder / name).write_text("\n".join(checks))
    program = compile_host(host / "moe_types.cpp", flags=[f"-I{folder}"])
    out = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return [line.split() for line in out.splitlines()]


@pytest.fixture(scope="module")
def chosen(said) -> dict[tuple[str, str, bool], str]:
    """(activation, output, use_mxfp8_act_scaling) to what the binding makes for it, with FP4 weights."""
    return {(one, two, mxfp8 == "1"): " ".join(made) for one, two, mxfp8, *made in said if one != "scales"}


@pytest.fixture(scope="module")
def taken(said) -> dict[tuple[str, str, bool], list[str]]:
    """The same to how it runs: `run=10` runs without scales of the input and refuses them."""
    return {(one, two, mxfp8 == "1"): ways for word, one, two, mxfp8, *ways in said if word == "scales"}


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


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_scales_are_not_asked_for_and_not_taken_where_the_input_is_quantized_here(taken, dtype):
    run, min_latency = taken[dtype, dtype, True]
    assert run == "run=10", f"{dtype} input whose scales nothing reads is taken without a word"
    assert min_latency[: len("min_latency=1")] == "min_latency=1", f"{dtype} input is asked for scales that it has not"


def test_quantized_input_needs_its_scales_as_before(taken):
    assert taken["e4m3", "bf16", True] == ["run=11", "min_latency=01"]
    assert taken["e4m3", "bf16", False] == ["run=11", "min_latency=10"]
