"""What the intent tests of the vLLM series share: a platform that says it is a given CUDA device."""

from __future__ import annotations

import os

import pytest

# The tests ask what the package would choose; nothing is reported anywhere.
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

SWITCHES = (
    "VLLM_MXFP4_MOE_KERNEL",
    "VLLM_MXFP4_ACTIVATION",
    "VLLM_ATTENTION_SINKS",
    "VLLM_MXFP4_USE_MARLIN",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS",
)


@pytest.fixture(autouse=True)
def no_switches(monkeypatch):
    """Each test starts from the defaults, whatever the caller's shell holds."""
    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def capability(monkeypatch):
    """A function that makes the platform a CUDA device of the compute capability given, e.g. (12, 1)."""

    def be(major: int, minor: int = 0) -> None:
        from vllm.platforms import current_platform
        from vllm.platforms.interface import DeviceCapability, PlatformEnum

        # Every module holds the same platform object, so the object itself changes.
        kind = type(current_platform)
        monkeypatch.setattr(kind, "_enum", PlatformEnum.CUDA)
        monkeypatch.setattr(kind, "device_name", f"sm_{major}{minor}", raising=False)
        monkeypatch.setattr(
            kind, "get_device_capability", classmethod(lambda cls, device_id=0: DeviceCapability(major, minor))
        )

    return be


@pytest.fixture
def moe_config():
    """A function that returns gpt-oss-120b's MoE configuration with the fields given replaced."""

    def make(**changes):
        import torch
        from vllm.model_executor.layers.fused_moe.activation import MoEActivation
        from vllm.model_executor.layers.fused_moe.config import (
            FusedMoEConfig,
            FusedMoEParallelConfig,
            RoutingMethodType,
        )

        fields = {
            "num_experts": 128,
            "experts_per_token": 4,
            "hidden_dim": 2880,
            "intermediate_size_per_partition": 2880,
            "num_local_experts": 128,
            "num_logical_experts": 128,
            "activation": MoEActivation.SWIGLUOAI,
            "device": "cpu",
            "routing_method": RoutingMethodType.Renormalize,
            "moe_parallel_config": FusedMoEParallelConfig.make_no_parallel(),
            "in_dtype": torch.bfloat16,
            "has_bias": True,
        }
        return FusedMoEConfig(**(fields | changes))

    return make


@pytest.fixture
def oracle(monkeypatch):
    """The MXFP4 oracle with FlashInfer's CUTLASS MoE taken as installed; `.said` holds its log lines."""
    from vllm.model_executor.layers.fused_moe.experts import flashinfer_cutlass_moe, gpt_oss_triton_kernels_moe
    from vllm.model_executor.layers.fused_moe.oracle import mxfp4

    monkeypatch.setattr(flashinfer_cutlass_moe, "has_flashinfer_cutlass_fused_moe", lambda: True)
    monkeypatch.setattr(gpt_oss_triton_kernels_moe, "has_triton_kernels", lambda: True)
    said: list[str] = []
    monkeypatch.setattr(mxfp4.logger, "info_once", lambda text, *args, **_: said.append(text % args if args else text))
    monkeypatch.setattr(mxfp4, "said", said, raising=False)
    return mxfp4
