"""V-01: two switches name the MXFP4 MoE kernel and its activations; each is honoured or refused by name."""

from __future__ import annotations

import pytest

KERNEL, ACTIVATION = "VLLM_MXFP4_MOE_KERNEL", "VLLM_MXFP4_ACTIVATION"


def choose(oracle, config) -> str:
    """The backend taken, or the text of the refusal."""
    try:
        return oracle.select_mxfp4_moe_backend(config)[0].value
    except (ValueError, NotImplementedError) as refusal:
        return f"refused: {refusal}"


def test_the_switches_are_declared_with_auto_as_default():
    from vllm import envs

    for name in (KERNEL, ACTIVATION):
        assert name in envs.environment_variables, f"{name} is not declared"
        assert getattr(envs, name) == "auto"


@pytest.mark.parametrize(("name", "value"), [(KERNEL, "marlin"), (ACTIVATION, "bf16")])
def test_the_switches_enter_the_compile_key(monkeypatch, name, value):
    from vllm import envs

    before = envs.compile_factors().get(name)
    monkeypatch.setenv(name, value)
    assert (before, envs.compile_factors().get(name)) == ("auto", value)


@pytest.mark.parametrize(("name", "choices"), [(KERNEL, "gemm marlin triton"), (ACTIVATION, "bf16 mxfp4 mxfp8")])
def test_a_wrong_value_is_refused_before_anything_loads(monkeypatch, name, choices):
    from vllm import envs

    monkeypatch.setenv(name, "fastest")
    refusal = ""
    try:
        envs.validate_environ(hard_fail=False)
    except ValueError as error:
        refusal = str(error)
    assert name in refusal
    assert "fastest" in refusal
    for choice in choices.split():
        assert choice in refusal


@pytest.mark.parametrize(
    ("device", "kernel", "activation", "taken"),
    [
        ((8, 0), "marlin", "auto", "MARLIN"),
        ((9, 0), "marlin", "bf16", "MARLIN"),
        ((9, 0), "gemm", "auto", "FLASHINFER_CUTLASS_MXFP4_BF16"),
        ((9, 0), "triton", "auto", "TRITON"),
        ((10, 0), "gemm", "auto", "FLASHINFER_CUTLASS_MXFP4_MXFP8"),
        ((10, 0), "auto", "mxfp8", "FLASHINFER_TRTLLM_MXFP4_MXFP8"),
        ((12, 0), "gemm", "mxfp8", "FLASHINFER_CUTLASS_MXFP4_MXFP8"),
        ((12, 1), "gemm", "auto", "FLASHINFER_CUTLASS_MXFP4_MXFP8"),
        ((12, 1), "auto", "mxfp8", "FLASHINFER_CUTLASS_MXFP4_MXFP8"),
        ((12, 1), "auto", "bf16", "MARLIN"),
        ((12, 1), "marlin", "auto", "MARLIN"),
    ],
)
def test_a_switch_is_honoured(monkeypatch, capability, oracle, moe_config, device, kernel, activation, taken):
    from vllm.model_executor.layers.fused_moe.experts import trtllm_mxfp4_moe

    monkeypatch.setattr(trtllm_mxfp4_moe, "has_flashinfer", lambda: True)
    capability(*device)
    monkeypatch.setenv(KERNEL, kernel)
    monkeypatch.setenv(ACTIVATION, activation)
    assert choose(oracle, moe_config()) == taken


@pytest.mark.parametrize(
    ("device", "settings", "moe_backend", "words"),
    [
        ((12, 1), {KERNEL: "marlin", ACTIVATION: "mxfp8"}, "auto", "marlin kernel takes bf16"),
        ((12, 1), {KERNEL: "marlin"}, "triton", "disagree"),
        ((12, 1), {ACTIVATION: "bf16"}, "flashinfer_cutlass_afp8", "disagree"),
        ((12, 1), {KERNEL: "gemm", "VLLM_MXFP4_USE_MARLIN": "1"}, "auto", "VLLM_MXFP4_USE_MARLIN=1"),
        ((12, 1), {KERNEL: "triton"}, "auto", "does not support current device sm_121"),
        ((9, 0), {KERNEL: "gemm", ACTIVATION: "mxfp8"}, "auto", "quantization scheme"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_the_reason(
    monkeypatch, capability, oracle, moe_config, device, settings, moe_backend, words
):
    capability(*device)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    answer = choose(oracle, moe_config(moe_backend=moe_backend))
    assert answer.startswith("refused: ")
    assert words in answer


@pytest.mark.parametrize("kernel", ["auto", "gemm", "marlin", "triton"])
def test_mxfp4_activations_are_a_choice_that_is_refused_with_the_reason(
    monkeypatch, capability, oracle, moe_config, kernel
):
    """Before anything loads, and by the oracle: never taken for another activation."""
    from vllm import envs

    capability(12, 1)
    monkeypatch.setenv(KERNEL, kernel)
    monkeypatch.setenv(ACTIVATION, "mxfp4")
    refusals = [choose(oracle, moe_config())]
    try:
        envs.validate_environ(hard_fail=False)
    except ValueError as error:
        refusals.append(str(error))
    assert len(refusals) == 2
    for refusal in refusals:
        assert "VLLM_MXFP4_ACTIVATION=mxfp4: there is no GEMM for MXFP4 weights and MXFP4 activations" in refusal
        assert "Choose auto, bf16 or mxfp8." in refusal


def test_switches_that_agree_are_one_request(monkeypatch, capability, oracle, moe_config):
    capability(12, 1)
    monkeypatch.setenv(KERNEL, "gemm")
    monkeypatch.setenv("VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS", "1")
    assert choose(oracle, moe_config()) == "FLASHINFER_CUTLASS_MXFP4_MXFP8"
    assert choose(oracle, moe_config(moe_backend="flashinfer_cutlass_afp8")) == "FLASHINFER_CUTLASS_MXFP4_MXFP8"
    monkeypatch.setenv(KERNEL, "marlin")
    assert "disagree" in choose(oracle, moe_config())
