"""V-09: asked for, the CUTLASS MoE of 12.x gets its input in BF16, which FlashInfer quantizes as it copies the rows."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

CUTLASS = "FLASHINFER_CUTLASS_MXFP4_MXFP8"


@pytest.fixture
def gemm(monkeypatch):
    """The switches that ask for it."""
    monkeypatch.setenv("VLLM_MXFP4_MOE_KERNEL", "gemm")
    monkeypatch.setenv("VLLM_MXFP4_ACTIVATION", "bf16")


def choose(oracle, config) -> str:
    """The backend taken, or the text of the refusal."""
    try:
        return oracle.select_mxfp4_moe_backend(config)[0].value
    except ValueError as refusal:
        return f"refused: {refusal}"


@pytest.mark.parametrize(
    ("device", "taken"), [((12, 0), CUTLASS), ((12, 1), CUTLASS), ((9, 0), "FLASHINFER_CUTLASS_MXFP4_BF16")]
)
def test_gemm_with_bf16_has_a_kernel(gemm, capability, oracle, moe_config, device, taken):
    capability(*device)
    assert choose(oracle, moe_config()) == taken


def test_elsewhere_it_is_still_refused_and_other_kernels_keep_bf16(gemm, monkeypatch, capability, oracle, moe_config):
    capability(12, 1)
    assert choose(oracle, moe_config()) == CUTLASS
    capability(10, 0)
    assert choose(oracle, moe_config()).startswith("refused: ")
    capability(12, 1)
    monkeypatch.setenv("VLLM_MXFP4_MOE_KERNEL", "auto")
    assert choose(oracle, moe_config()) == "MARLIN"


@pytest.fixture
def built(one_rank, capability, moe_config, monkeypatch):
    """A function that builds the experts and returns (experts, what FlashInfer got)."""

    def build(device=(12, 1), flashinfer_can=True):
        import torch
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.config.device import DeviceConfig
        from vllm.model_executor.layers.fused_moe.config import mxfp4_mxfp8_moe_quant_config
        from vllm.model_executor.layers.fused_moe.experts import flashinfer_cutlass_moe

        name = "vllm.model_executor.layers.fused_moe.experts.mxfp4_bf16_input"
        if importlib.util.find_spec(name):
            monkeypatch.setattr(importlib.import_module(name), "_flashinfer_quantizes", lambda: flashinfer_can)
        capability(*device)
        got: list[dict] = []
        monkeypatch.setattr(flashinfer_cutlass_moe, "flashinfer_cutlass_fused_moe", lambda **call: got.append(call))
        scales = [torch.zeros(4, rows, 4, dtype=torch.uint8) for rows in (256, 128)]
        cfg = VllmConfig(device_config=DeviceConfig("cpu"))
        cfg.compilation_config.max_cudagraph_capture_size = 64
        with set_current_vllm_config(cfg):
            config = moe_config(num_local_experts=4, num_experts=4, hidden_dim=128)
            return flashinfer_cutlass_moe.FlashInferExperts(config, mxfp4_mxfp8_moe_quant_config(*scales)), got

    return build


def prepared(experts, x):
    """The input as the modular kernel's own preparation hands it on."""
    import torch
    from vllm.model_executor.layers.fused_moe.prepare_finalize.no_dp_ep import MoEPrepareAndFinalizeNoDPEPModular

    weights, ids = torch.ones(len(x), 2), torch.zeros(len(x), 2, dtype=torch.int32)
    return MoEPrepareAndFinalizeNoDPEPModular().prepare(
        x, weights, ids, 4, None, False, experts.quant_config, experts.expects_unquantized_inputs
    )


def test_the_rows_reach_flashinfer_in_bf16_without_scales(gemm, built):
    import torch
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    experts, got = built()
    assert experts.expects_unquantized_inputs, "the rows are quantized before"
    x = torch.randn(3, 128).to(torch.bfloat16)
    rows, scale, *_ = prepared(experts, x)
    assert rows is x
    experts.apply(
        output=torch.zeros(3, 128, dtype=torch.bfloat16),
        hidden_states=rows,
        w1=torch.zeros(4, 256, 64, dtype=torch.uint8),
        w2=torch.zeros(4, 128, 64, dtype=torch.uint8),
        topk_weights=torch.ones(3, 2),
        topk_ids=torch.zeros(3, 2, dtype=torch.int32),
        activation=MoEActivation.SWIGLUOAI,
        global_num_experts=4,
        a1q_scale=scale,
        **dict.fromkeys(("expert_map", "a2_scale", "workspace13", "workspace2", "expert_tokens_meta")),
        apply_router_weight_on_input=False,
    )
    call = got[0]
    assert call["input"] is x
    assert call["input_sf"] is None
    assert call["use_mxfp8_act_scaling"] is True
    assert call["fc1_expert_weights"].dtype == torch.int64
    assert call["output_dtype"] == torch.bfloat16


@pytest.mark.parametrize(("device", "activation"), [((12, 1), "auto"), ((12, 1), "mxfp8"), ((10, 0), "bf16")])
def test_otherwise_the_rows_are_quantized_before(built, gemm, monkeypatch, device, activation):
    experts, _ = built()
    assert experts.expects_unquantized_inputs
    monkeypatch.setenv("VLLM_MXFP4_ACTIVATION", activation)
    experts, _ = built(device)
    assert not experts.expects_unquantized_inputs


def test_a_flashinfer_that_cannot_take_them_is_refused(gemm, built):
    refusal = ""
    try:
        built(flashinfer_can=False)
    except ValueError as error:
        refusal = str(error)
    assert "quantized to MXFP8 alone" in refusal


def test_the_check_reads_flashinfers_own_sources(tmp_path, monkeypatch):
    name = "vllm.model_executor.layers.fused_moe.experts.mxfp4_bf16_input"
    assert importlib.util.find_spec(name), "BF16 input is not wired"
    module = importlib.import_module(name)
    from flashinfer.jit import env

    monkeypatch.setattr(env, "FLASHINFER_CSRC_DIR", tmp_path)
    binding = tmp_path / "fused_moe" / "cutlass_backend" / "flashinfer_cutlass_fused_moe_binding.cu"
    binding.parent.mkdir(parents=True)
    for text, can in (("", False), ("if (needsMxfp8Quant()) {}", True)):
        binding.write_text(text)
        module._flashinfer_quantizes.cache_clear()
        assert module._flashinfer_quantizes() is can
    module._flashinfer_quantizes.cache_clear()
