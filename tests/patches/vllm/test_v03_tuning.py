"""V-03: FlashInfer tunes by default for the CUTLASS MoE of 12.x, and a second start finds the result."""

from __future__ import annotations

import types

import pytest


@pytest.fixture
def default(monkeypatch):
    """A function that returns the default of `enable_flashinfer_autotune` at an optimization level."""

    def ask(level, *, quantization="gpt_oss_mxfp4", moe_backend="auto", lora=None):
        from vllm.config import vllm as module

        value = module.OPTIMIZATION_LEVEL_TO_CONFIG[level]["kernel_config"]["enable_flashinfer_autotune"]
        cfg = types.SimpleNamespace(
            model_config=types.SimpleNamespace(quantization=quantization),
            kernel_config=types.SimpleNamespace(moe_backend=moe_backend),
            lora_config=lora,
        )
        return value(cfg) if callable(value) else value

    return ask


def levels():
    from vllm.config.vllm import OptimizationLevel

    return OptimizationLevel


@pytest.mark.parametrize(
    ("device", "tuned"), [((8, 0), False), ((9, 0), False), ((10, 0), False), ((12, 0), True), ((12, 1), True)]
)
def test_the_default_by_device(capability, default, device, tuned):
    capability(*device)
    assert [default(level) for level in (levels().O0, levels().O1, levels().O2)] == [False, tuned, tuned]


@pytest.mark.parametrize(
    ("settings", "changes", "tuned"),
    [
        ({}, {"moe_backend": "flashinfer_cutlass_afp8"}, True),
        ({"VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS": "1"}, {}, True),
        ({}, {"moe_backend": "marlin"}, False),
        ({"VLLM_MXFP4_USE_MARLIN": "1"}, {}, False),
        ({"VLLM_MXFP4_MOE_KERNEL": "marlin"}, {}, False),
        ({"VLLM_MXFP4_ACTIVATION": "bf16"}, {}, False),
        ({}, {"quantization": "fp8"}, False),
        ({}, {"lora": object()}, False),
    ],
)
def test_only_the_cutlass_moe_is_tuned(monkeypatch, capability, default, settings, changes, tuned):
    capability(12, 1)
    assert default(levels().O2) is True
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert default(levels().O2, **changes) is tuned


def test_without_flashinfer_the_experts_go_elsewhere(monkeypatch, capability, default):
    capability(12, 1)
    assert default(levels().O2) is True
    import vllm.utils.flashinfer_tuning as tuning

    monkeypatch.setattr(tuning, "has_flashinfer", lambda: False)
    assert default(levels().O2) is False


def test_a_flag_wins_over_the_default(capability):
    from vllm.config import VllmConfig
    from vllm.config.device import DeviceConfig
    from vllm.config.kernel import KernelConfig
    from vllm.config.vllm import OPTIMIZATION_LEVEL_TO_CONFIG, OptimizationLevel

    assert callable(OPTIMIZATION_LEVEL_TO_CONFIG[OptimizationLevel.O2]["kernel_config"]["enable_flashinfer_autotune"])
    cfg = VllmConfig(device_config=DeviceConfig("cpu"), kernel_config=KernelConfig(enable_flashinfer_autotune=True))
    assert cfg.kernel_config.enable_flashinfer_autotune is True
    assert VllmConfig(device_config=DeviceConfig("cpu")).kernel_config.enable_flashinfer_autotune is False


@pytest.mark.parametrize(
    ("device", "captured", "most"),
    [((12, 1), 0, 8192), ((12, 1), 64, 8192), ((12, 1), 16384, 16384), ((9, 0), 0, 1), ((9, 0), 512, 512)],
)
def test_sizes_are_tuned_as_far_as_a_prefill_goes_on_12(
    capability, one_rank, moe_config, oracle, device, captured, most
):
    """The kernel is asked for the best tactic up to that many tokens; beyond, the last one serves."""
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.config.device import DeviceConfig
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.config import mxfp4_mxfp8_moe_quant_config
    from vllm.model_executor.layers.fused_moe.experts import flashinfer_cutlass_moe

    given: list[dict] = []
    cfg = VllmConfig(device_config=DeviceConfig("cpu"))
    cfg.model_config = types.SimpleNamespace(quantization="gpt_oss_mxfp4")
    cfg.scheduler_config.max_num_batched_tokens = 8192
    cfg.compilation_config.max_cudagraph_capture_size = captured
    capability(*device)
    scales = [torch.zeros(4, rows, 4, dtype=torch.uint8) for rows in (256, 128)]
    with set_current_vllm_config(cfg), pytest.MonkeyPatch.context() as patch:
        patch.setattr(flashinfer_cutlass_moe, "flashinfer_cutlass_fused_moe", lambda **call: given.append(call))
        kind = flashinfer_cutlass_moe.FlashInferExperts
        experts = kind(moe_config(num_local_experts=4), mxfp4_mxfp8_moe_quant_config(*scales))
        experts.apply(
            output=torch.zeros(1, 128),
            hidden_states=torch.zeros(1, 128),
            w1=torch.zeros(4, 256, 64, dtype=torch.uint8),
            w2=torch.zeros(4, 128, 64, dtype=torch.uint8),
            topk_weights=torch.ones(1, 2),
            topk_ids=torch.zeros(1, 2, dtype=torch.int32),
            activation=MoEActivation.SWIGLUOAI,
            global_num_experts=4,
            a1q_scale=torch.zeros(1),
            **dict.fromkeys(("expert_map", "a2_scale", "workspace13", "workspace2", "expert_tokens_meta")),
            apply_router_weight_on_input=False,
        )
    assert given[0]["tune_max_num_tokens"] == most


@pytest.fixture
def start(monkeypatch, tmp_path, capability):
    """A function that does what the worker does at start, in FlashInfer's own tuner with a kernel of two
    tactics, and returns how many kernels were timed."""
    autotuner = pytest.importorskip("flashinfer.autotuner")
    import torch
    import vllm.utils.flashinfer as fi_utils
    from vllm.config import VllmConfig
    from vllm.config.device import DeviceConfig
    from vllm.model_executor.warmup import kernel_warmup

    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    monkeypatch.setattr(fi_utils, "has_flashinfer", lambda: True)
    cfg = VllmConfig(device_config=DeviceConfig("cpu"))
    timed: list[int] = []

    class Kernel(autotuner.TunableRunner):
        def get_valid_tactics(self, inputs, profile):
            return [0, 1]

        def forward(self, inputs, tactic=-1, do_preparation=False, **kwargs):
            return tactic

        def __hash__(self):
            return 7

    def profile(self, runner, inputs, tactic, *args, **kwargs):
        timed.append(tactic)
        return 1.0 - tactic / 10

    monkeypatch.setattr(autotuner.AutoTuner, "_profile_single_kernel", profile)

    def once(device=(12, 1), changed=None):
        capability(*device)
        timed.clear()
        tuner = autotuner.AutoTuner.get()
        tuner.clear_cache()  # a new process knows nothing

        def dummy_run(*args, **kwargs):
            once.took = tuner.choose_one("fake::moe", [Kernel()], autotuner.TuningConfig(), [torch.zeros(4, 4)])[1]

        runner = types.SimpleNamespace(
            vllm_config=changed or cfg,
            scheduler_config=types.SimpleNamespace(max_num_batched_tokens=64),
            _dummy_run=dummy_run,
        )
        kernel_warmup.flashinfer_autotune(runner)
        return len(timed)

    return once


def test_the_second_start_times_nothing_and_takes_the_same_tactic(start, tmp_path):
    assert start() == 2
    assert start.took == 1
    assert start() == 0, "the second start tuned again"
    assert start.took == 1
    assert len(list(tmp_path.rglob("*.json"))) == 1


def test_another_build_of_the_kernels_tunes_anew(start, monkeypatch):
    assert (start(), start()) == (2, 0)
    monkeypatch.setenv("FLASHINFER_MOE_TILE", "128x64")
    assert start() == 2


def test_a_broken_file_costs_a_tuning_not_the_start(start, tmp_path, said):
    start()
    kept = list(tmp_path.rglob("*.json"))
    assert kept, "nothing was kept"
    kept[0].write_text('{"half": [')
    assert start() == 2
    assert [line for line in said if "unreadable" in line]
    assert start() == 0


def test_other_devices_keep_nothing(start, tmp_path):
    assert (start(), start()) == (2, 0)
    before = set(tmp_path.rglob("*.json"))
    assert start(device=(9, 0)) == 2
    assert set(tmp_path.rglob("*.json")) == before
