"""V-12: where the CUTLASS MoE of 12.x runs, a captured CUDA graph holds only sizes that decode kernels serve."""

from __future__ import annotations

import types

import pytest

USUAL = (None, 1024, None)


@pytest.fixture
def decided(capability, monkeypatch, no_registry):
    """A function that returns (sizes, most, mode) as gpt-oss's configuration leaves them."""

    def ask(device=(12, 1), moe_backend="auto", lora=None, ranks=1, eager=False, **given):
        from vllm.config import CompilationConfig
        from vllm.model_executor.models.config import GptOssForCausalLMConfig

        capability(*device)
        compilation = CompilationConfig(**given)
        GptOssForCausalLMConfig.verify_and_update_config(
            types.SimpleNamespace(
                structured_outputs_config=types.SimpleNamespace(reasoning_parser=""),
                compilation_config=compilation,
                model_config=types.SimpleNamespace(quantization="gpt_oss_mxfp4", enforce_eager=eager),
                kernel_config=types.SimpleNamespace(moe_backend=moe_backend),
                parallel_config=types.SimpleNamespace(data_parallel_size=ranks),
                lora_config=lora,
            )
        )
        mode = compilation.cudagraph_mode
        return (
            compilation.cudagraph_capture_sizes,
            compilation.max_cudagraph_capture_size,
            None if mode is None else mode.name,
        )

    return ask


@pytest.fixture
def no_registry(monkeypatch):
    """The registry of decode kernels forgets what another test installed."""
    import importlib
    import importlib.util

    if importlib.util.find_spec("vllm.utils.decode_kernels"):
        module = importlib.import_module("vllm.utils.decode_kernels")
        module._registry.cache_clear()
        module.decode_kernel.cache_clear()
        yield
        module._registry.cache_clear()
        module.decode_kernel.cache_clear()
    else:
        yield


def test_without_decode_kernels_nothing_is_captured_and_the_log_says_what_to_do(decided, said):
    assert decided()[2] == "NONE"
    lines = [line for line in said if line.startswith("CUDA graphs: ")]
    assert len(lines) == 1
    for words in ("--cudagraph-capture-sizes", "VLLM_MXFP4_MOE_KERNEL=marlin"):
        assert words in lines[0]


def test_with_decode_kernels_their_sizes_are_captured(decided, install):
    install("offered")
    sizes, most, mode = decided()
    assert (sizes, most, mode) == ([1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64], None, None)


def test_a_size_between_two_kernels_is_left_out(decided, install):
    install("gap")
    assert decided()[0] == [1, 2, 32, 40, 48, 56, 64]


def test_with_data_parallelism_the_experts_see_other_sizes(decided, install):
    install("offered")
    assert decided(ranks=2)[2] == "NONE"


@pytest.mark.parametrize(
    "given",
    [{"cudagraph_capture_sizes": [1, 2, 128]}, {"max_cudagraph_capture_size": 256}, {"cudagraph_mode": "PIECEWISE"}],
    ids=lambda given: next(iter(given)),
)
def test_whoever_asks_gets_it(decided, given):
    assert decided()[2] == "NONE"
    sizes, most, mode = decided(**given)
    assert (sizes, most, mode) == (
        given.get("cudagraph_capture_sizes"),
        given.get("max_cudagraph_capture_size", None if "cudagraph_capture_sizes" in given else 1024),
        given.get("cudagraph_mode"),
    )


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({}, {"device": (9, 0)}),
        ({}, {"device": (10, 0)}),
        ({}, {"moe_backend": "marlin"}),
        ({}, {"lora": object()}),
        ({}, {"eager": True}),
        ({"VLLM_MXFP4_MOE_KERNEL": "marlin"}, {}),
        ({"VLLM_MXFP4_USE_MARLIN": "1"}, {}),
    ],
)
def test_what_does_not_run_cutlass_is_captured_as_ever(decided, monkeypatch, settings, changes):
    assert decided()[2] == "NONE"
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert decided(**changes) == USUAL


def test_gemm_by_name_is_no_wish_to_capture_it(decided, monkeypatch):
    monkeypatch.setenv("VLLM_MXFP4_MOE_KERNEL", "gemm")
    assert decided()[2] == "NONE"
