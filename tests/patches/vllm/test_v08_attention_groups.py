"""V-08: layers that FlashInfer plans differently are planned apart: a draft model may differ from its target."""

from __future__ import annotations

import types

import pytest


@pytest.fixture
def world(capability, tiny_config):
    """A function that registers layers by their implementation's attributes and returns what the runners are given."""

    def make(backend_name="FLASHINFER", **layers):
        import torch
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
        from vllm.v1.attention.backend import AttentionBackend, AttentionCGSupport
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        built: list[list[str]] = []

        class Builder:
            def __init__(self, spec, names, config, device):
                self.kv_cache_spec = spec
                built.append(names)

            def get_cudagraph_support(self, config, spec):
                return AttentionCGSupport.ALWAYS

        class Backend(AttentionBackend):
            get_name = staticmethod(lambda: backend_name)
            get_builder_cls = staticmethod(lambda: Builder)
            full_cls_name = classmethod(lambda cls: ("tests", backend_name))

        class Layer(torch.nn.Module, AttentionLayerBase):
            get_attn_backend = staticmethod(lambda: Backend)
            get_kv_cache_spec = None

        Layer.__abstractmethods__ = frozenset()
        capability(12, 1)
        config = tiny_config()
        for name, changes in layers.items():
            layer = Layer()
            usual = {"window_left": -1, "logits_soft_cap": None, "scale": 0.125, "sinks": object(), "num_heads": 8}
            layer.impl = types.SimpleNamespace(**(usual | changes))
            config.compilation_config.static_forward_context[name] = layer
        spec = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)
        cache = KVCacheConfig(0, [], [KVCacheGroupSpec(list(layers), spec)])
        return config, cache

    return make


def of_runner(config, cache) -> list[list[str]]:
    """The groups that the model runner makes."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    runner = types.SimpleNamespace(
        attn_groups=[],
        vllm_config=config,
        kv_sharing_fast_prefill_eligible_layers=set(),
        _check_and_update_cudagraph_mode=lambda *args, **kwargs: None,
    )
    GPUModelRunner.initialize_attn_backend(runner, cache)
    return [group.layer_names for group in runner.attn_groups[0]]


def of_second_runner(config, cache) -> list[list[str]]:
    """The groups of the runner that is to replace it."""
    from vllm.v1.worker.gpu.attn_utils import init_attn_backend

    return [group.layer_names for group in init_attn_backend(cache, config, "cpu")[1][0]]


def of_drafter(config, cache) -> list[list[str]]:
    """The groups of a drafter to which all layers belong."""
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    drafter = types.SimpleNamespace(
        vllm_config=config,
        device="cpu",
        _draft_attn_layer_names=sorted(cache.kv_cache_groups[0].layer_names),
        validate_same_kv_cache_group=lambda cache: None,
    )
    drafter._draft_attn_layer_names = _Names(drafter._draft_attn_layer_names)
    SpecDecodeBaseProposer.initialize_attn_backend(drafter, cache)
    return [group.layer_names for group in drafter.draft_attn_groups]


class _Names(list):
    """Names in order that meet a set as a set does."""

    def __and__(self, other):
        return set(self) & other


@pytest.mark.parametrize("groups", [of_runner, of_second_runner, of_drafter])
@pytest.mark.parametrize(
    "change",
    [{"sinks": None}, {"scale": 0.1}, {"logits_soft_cap": 30.0}, {"window_left": 127}, {"num_heads": 4}],
    ids=lambda change: next(iter(change)),
)
def test_layers_that_differ_are_planned_apart(world, groups, change):
    config, cache = world(a={}, b={}, draft=change)
    assert groups(config, cache) == [["a", "b"], ["draft"]]


@pytest.mark.parametrize("groups", [of_runner, of_second_runner, of_drafter])
def test_layers_that_agree_stay_together(world, groups):
    config, cache = world(a={}, b={}, c={})
    assert groups(config, cache) == [["a", "b", "c"]]
    config, cache = world(backend_name="TRITON_ATTN", a={}, draft={"sinks": None})
    assert groups(config, cache) == [["a", "draft"]], "other backends take these from the layer, not from a plan"


def test_the_number_of_query_heads_is_the_layers_own(capability, one_rank, tiny_config, monkeypatch):
    """The target has 8 heads; a draft layer with 4 is planned for 4."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.v1.attention.backends import flashinfer
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    class Layer(torch.nn.Module, AttentionLayerBase):
        get_attn_backend = get_kv_cache_spec = None

    Layer.__abstractmethods__ = frozenset()
    capability(12, 1)
    monkeypatch.setattr(flashinfer, "is_pin_memory_available", lambda: False)
    config = tiny_config()
    spec = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)
    heads = []
    with set_current_vllm_config(config):
        for name, count in (("target", 8), ("draft", 4)):
            layer = Layer()
            layer.impl = flashinfer.FlashInferImpl(count, 64, 0.125, 2, None, None, "auto")
            config.compilation_config.static_forward_context[name] = layer
            builder = flashinfer.FlashInferMetadataBuilder(spec, [name], config, torch.device("cpu"))
            heads.append(builder.num_qo_heads)
    assert heads == [8, 4]
