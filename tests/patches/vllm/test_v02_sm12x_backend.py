"""V-02: compute capability 12.x takes its native MXFP8 x MXFP4 grouped GEMM, and the log says why."""

from __future__ import annotations

from argparse import ArgumentError

import pytest

CUTLASS = "FLASHINFER_CUTLASS_MXFP4_MXFP8"


def parsed(words: list[str]) -> str:
    """`--moe-backend` as the real parser reads it, or its refusal."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(exit_on_error=False)
    try:
        return EngineArgs.add_cli_args(parser).parse_args(words).moe_backend
    except (SystemExit, ArgumentError) as refusal:
        return f"refused: {refusal}"


@pytest.mark.parametrize("name", ["flashinfer_cutlass_afp8", "flashinfer-trtllm-afp8"])
def test_both_literals_pass_the_parser_and_the_configuration(name):
    from vllm.config.kernel import KernelConfig

    assert parsed(["--moe-backend", name]).replace("-", "_") == name.replace("-", "_")
    held = ""
    try:
        held = KernelConfig(moe_backend=name).moe_backend
    except ValueError as refusal:
        held = str(refusal)
    assert held == name.replace("-", "_")


def test_a_name_that_no_backend_has_is_still_refused():
    assert parsed(["--moe-backend", "flashinfer_cutlass_afp4"]).startswith("refused: ")


@pytest.mark.parametrize(
    ("device", "taken"),
    [
        ((8, 0), "MARLIN"),
        ((9, 0), "TRITON"),
        ((10, 0), "FLASHINFER_TRTLLM_MXFP4_BF16"),
        ((12, 0), CUTLASS),
        ((12, 1), CUTLASS),
    ],
)
def test_auto_takes_the_native_kernel_on_12_and_leaves_other_devices_alone(
    monkeypatch, capability, oracle, moe_config, device, taken
):
    from vllm.model_executor.layers.fused_moe.experts import trtllm_mxfp4_moe

    monkeypatch.setattr(trtllm_mxfp4_moe, "has_flashinfer", lambda: True)
    capability(*device)
    backend, experts = oracle.select_mxfp4_moe_backend(moe_config())
    assert backend.value == taken
    assert experts is not None


def test_the_line_says_what_auto_took_and_why(said, capability, oracle, moe_config):
    capability(12, 1)
    oracle.select_mxfp4_moe_backend(moe_config())
    assert said == [f"Using '{CUTLASS}' Mxfp4 MoE backend: chosen by auto for compute capability 12.1."]


def test_the_line_says_what_was_passed_over(said, capability, oracle, moe_config):
    capability(12, 1)
    backend, _ = oracle.select_mxfp4_moe_backend(moe_config(is_lora_enabled=True))
    assert backend.value == "MARLIN"
    assert len(said) == 1
    assert f"passed over: {CUTLASS} (kernel does not support LoRA)" in said[0]


@pytest.mark.parametrize(
    ("moe_backend", "settings", "who"),
    [
        ("marlin", {}, "--moe-backend marlin"),
        ("flashinfer_cutlass_afp8", {}, "--moe-backend flashinfer_cutlass_afp8"),
        ("auto", {"VLLM_MXFP4_USE_MARLIN": "1"}, "VLLM_MXFP4_USE_MARLIN=1"),
        ("auto", {"VLLM_MXFP4_MOE_KERNEL": "gemm"}, "VLLM_MXFP4_MOE_KERNEL=gemm"),
        ("auto", {"VLLM_MXFP4_ACTIVATION": "bf16"}, "VLLM_MXFP4_ACTIVATION=bf16"),
    ],
)
def test_the_line_says_who_asked(said, monkeypatch, capability, oracle, moe_config, moe_backend, settings, who):
    capability(12, 1)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    backend, _ = oracle.select_mxfp4_moe_backend(moe_config(moe_backend=moe_backend))
    assert said == [f"Using '{backend.value}' Mxfp4 MoE backend: asked for by {who}."]


@pytest.mark.parametrize(
    ("moe_backend", "words"),
    [
        ("flashinfer_trtllm_afp8", "does not support current device sm_121"),
        ("flashinfer_cutlass", "quantization scheme"),
        ("triton", "does not support current device sm_121"),
    ],
)
def test_a_named_backend_that_cannot_run_is_refused_with_the_reason(capability, oracle, moe_config, moe_backend, words):
    capability(12, 1)
    with pytest.raises(ValueError, match=words):
        oracle.select_mxfp4_moe_backend(moe_config(moe_backend=moe_backend))
