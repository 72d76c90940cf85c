"""V-04: on compute capability 12.x FlashInfer serves layers with attention sinks, by FA2, prefill and decode."""

from __future__ import annotations

import sys
import types

import pytest

DIM = 64


def takes_sinks(backend) -> bool:
    """As the selection asks, with a configuration in force."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.config.device import DeviceConfig

    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
        return backend.FlashInferBackend.supports_sink()


@pytest.mark.parametrize(("device", "supported"), [((9, 0), False), ((12, 0), True), ((12, 1), True)])
def test_the_backend_says_that_it_takes_sinks_on_12(capability, backend, device, supported):
    capability(*device)
    assert takes_sinks(backend) is supported


def test_an_older_flashinfer_would_drop_them_and_does_not_count(capability, backend, monkeypatch):
    capability(12, 1)
    assert takes_sinks(backend)
    from vllm.v1.attention.backends import flashinfer_sinks

    monkeypatch.setattr(flashinfer_sinks, "_wrapper_has_sinks", lambda: False)
    assert not takes_sinks(backend)


def reasons(kind, device):
    """Why a backend would be refused for a gpt-oss layer."""
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.config.device import DeviceConfig
    from vllm.platforms.interface import DeviceCapability

    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
        return kind.validate_configuration(
            head_size=64,
            dtype=torch.bfloat16,
            kv_cache_dtype="fp8",
            block_size=16,
            use_mla=False,
            has_sink=True,
            use_sparse=False,
            use_mm_prefix=False,
            use_per_head_quant_scales=False,
            device_capability=DeviceCapability(*device),
            attn_type="decoder",
        )


def test_flashinfer_comes_first_on_12_and_triton_stays_selectable(capability, backend, monkeypatch):
    # The platform's module imports compiled code: one module that a CPU build does not have, and one that it has for
    # processors with AVX-512 alone.
    for name in ("vllm._C_stable_libtorch", "vllm._C"):
        if name not in sys.modules:
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    from vllm.platforms.cuda import _get_backend_priorities
    from vllm.platforms.interface import DeviceCapability
    from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend

    capability(12, 1)
    order = [entry.name for entry in _get_backend_priorities(False, DeviceCapability(12, 1))]
    assert order.index("FLASHINFER") < order.index("TRITON_ATTN")
    assert not [why for why in reasons(backend.FlashInferBackend, (12, 1)) if "sink" in why]
    assert reasons(TritonAttentionBackend, (12, 1)) == []


@pytest.mark.parametrize("cache", ["auto", "fp8"])
@pytest.mark.parametrize("window", [None, 24])
def test_a_mixed_batch_is_attention_with_sinks(step, wrappers, cache, window):
    import torch

    got, want = step(decodes=[1, 33, 70], prefills=[(5, 40), (17, 17)], window=window, cache=cache)
    torch.testing.assert_close(got.double(), want, rtol=2**-7, atol=2**-6)
    assert [wrapper.kind for wrapper in wrappers] == ["sink prefill", "decode"]
    prefill, decode = wrappers
    left = -1 if window is None else window - 1
    dtype = torch.bfloat16 if cache == "auto" else torch.float8_e4m3fn
    assert prefill.given == {
        "backend": "fa2",
        "q_data_type": torch.bfloat16,
        "kv_data_type": dtype,
        "head_dim_qk": DIM,
        "head_dim_vo": DIM,
        "window_left": left,
    }
    assert decode.given["use_sinks"] is True
    assert decode.given["use_tensor_cores"] is True
    for wrapper in wrappers:
        assert wrapper.planned[0]["window_left"] == left
        assert wrapper.planned[0]["kv_data_type"] == dtype
        assert wrapper.planned[0]["q_data_type"] == torch.bfloat16


def test_decode_alone_and_prefill_alone(step, wrappers):
    import torch

    for batch in ({"decodes": [40], "prefills": []}, {"decodes": [], "prefills": [(3, 19)]}):
        wrappers.clear()
        got, want = step(**batch)
        torch.testing.assert_close(got.double(), want, rtol=2**-7, atol=2**-6)
        assert len(wrappers) == 1


def test_layers_without_sinks_keep_their_wrappers(step, wrappers, backend):
    import torch

    got, want = step(decodes=[20], prefills=[(4, 4)], sinks=False)
    torch.testing.assert_close(got.double(), want, rtol=2**-7, atol=2**-6)
    assert [wrapper.kind for wrapper in wrappers] == ["prefill", "decode"]
    assert "use_sinks" not in wrappers[1].given
    assert hasattr(backend, "fa2_takes_sinks")


def test_elsewhere_sinks_are_still_refused(step, backend):
    assert hasattr(backend, "fa2_takes_sinks")
    with pytest.raises(pytest.fail.Exception, match=r"refused: .* does not support attention sinks"):
        step(decodes=[4], prefills=[], device=(9, 0))


def test_a_cache_that_fa2_cannot_read_is_refused_by_name(backend, capability):
    assert hasattr(backend, "serves_sinks_by_fa2")
    capability(12, 1)
    group = types.SimpleNamespace(has_sinks=True, use_dcp=False, is_kvcache_nvfp4=True)
    with pytest.raises(NotImplementedError, match="NVFP4 KV cache"):
        backend.serves_sinks_by_fa2(group)


def test_the_real_wrappers_take_the_arguments_that_are_passed(step, wrappers):
    """The stand-ins take anything; FlashInfer's own signatures decide."""
    import inspect

    from flashinfer import BatchDecodeWithPagedKVCacheWrapper
    from flashinfer.attention import BatchAttentionWithAttentionSinkWrapper

    step(decodes=[20], prefills=[(4, 4)])
    kinds = {"sink prefill": BatchAttentionWithAttentionSinkWrapper, "decode": BatchDecodeWithPagedKVCacheWrapper}
    for wrapper in wrappers:
        real = kinds[wrapper.kind]
        unknown = set(wrapper.given) - set(inspect.signature(real.__init__).parameters)
        assert not unknown
        plan = inspect.signature(inspect.unwrap(real.plan))
        assert not set(wrapper.planned[0]) - set(plan.parameters)
