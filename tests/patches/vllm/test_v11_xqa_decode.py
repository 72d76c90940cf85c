"""V-11: asked for, decode on compute capability 12.x goes to FlashInfer's XQA kernel: no plan on the host."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

SWITCH = "VLLM_FLASHINFER_XQA_DECODE"


def module():
    """The module under test; asked for inside each test, so that its absence is a failure, not an error."""
    name = "vllm.v1.attention.backends.flashinfer_xqa"
    assert importlib.util.find_spec(name) is not None, "there is no XQA decode"
    return importlib.import_module(name)


@pytest.fixture
def xqa(monkeypatch, backend):
    """A stand-in for the kernel that computes what FlashInfer's documentation promises; returns its calls."""
    xqa = module_or_none()
    calls: list[dict] = []
    if xqa is None:
        return calls
    import torch

    def kernel(*, query, kv_cache, block_tables, seq_lens, window_left, out, sinks, kv_layout, **given):
        assert query.is_contiguous()
        assert block_tables.is_contiguous()
        assert query.shape[0] == block_tables.shape[0] == seq_lens.shape[0]
        assert kv_layout == "NHD"
        assert given["workspace_buffer"].dtype == torch.uint8
        calls.append({"window_left": window_left, "sinks": sinks, **given})
        for i, n in enumerate(seq_lens.tolist()):
            pages = kv_cache[block_tables[i].long()].float()
            k, v = (pages[:, part].flatten(0, 1)[:n] for part in (0, 1))
            y = backend_attention()(query[i : i + 1], k, v, sinks, given["bmm1_scale"], window_left)
            out[i] = (y[0] * given["bmm2_scale"]).to(out.dtype)

    monkeypatch.setattr(xqa, "xqa_batch_decode_with_kv_cache", kernel)
    monkeypatch.setattr(xqa, "_is_ordered", lambda: True)
    workspace = torch.zeros(16, dtype=torch.uint8)
    monkeypatch.setattr(backend, "_get_trtllm_gen_workspace_buffer", lambda: workspace)
    return calls


def module_or_none():
    name = "vllm.v1.attention.backends.flashinfer_xqa"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def backend_attention():
    import sys

    return sys.modules["flashinfer_reference"].attention


@pytest.mark.parametrize("cache", ["auto", "fp8"])
@pytest.mark.parametrize("window", [None, 24])
def test_a_mixed_batch_decodes_by_xqa_and_prefills_by_fa2(step, wrappers, xqa, monkeypatch, cache, window):
    module()
    import torch

    monkeypatch.setenv(SWITCH, "1")
    got, want = step(decodes=[1, 33, 70], prefills=[(5, 40)], window=window, cache=cache)
    torch.testing.assert_close(got.double(), want, rtol=2**-7, atol=2**-6)
    assert [wrapper.kind for wrapper in wrappers] == ["sink prefill"]
    assert len(xqa) == 1
    assert xqa[0]["window_left"] == (-1 if window is None else window - 1)
    assert xqa[0]["sinks"].dtype == torch.float32


def test_decode_alone_plans_nothing_and_reads_no_length_on_the_host(step, wrappers, xqa, monkeypatch):
    module()
    import torch
    from vllm.v1.attention.backend import CommonAttentionMetadata

    monkeypatch.setenv(SWITCH, "1")

    def read(self):
        pytest.fail("the lengths were read on the host")

    monkeypatch.setattr(CommonAttentionMetadata, "seq_lens_cpu", property(read))
    got, want = step(decodes=[40, 3], prefills=[])
    torch.testing.assert_close(got.double(), want, rtol=2**-7, atol=2**-6)
    assert wrappers == []
    assert len(xqa) == 1


def test_it_is_off_unless_asked_for(step, wrappers, xqa):
    module()
    step(decodes=[40, 3], prefills=[])
    assert xqa == []
    assert [wrapper.kind for wrapper in wrappers] == ["decode"]


def test_a_prefill_alone_does_not_touch_it(step, wrappers, xqa, monkeypatch):
    module()
    monkeypatch.setenv(SWITCH, "1")
    step(decodes=[], prefills=[(5, 40)])
    assert xqa == []
    assert [wrapper.kind for wrapper in wrappers] == ["sink prefill"]


@pytest.mark.parametrize(
    ("device", "unfit", "words"),
    [
        ((9, 0), {}, "compute capability 12.x"),
        ((12, 1), {"use_dcp": True}, "decode context parallelism"),
        ((12, 1), {"is_kvcache_nvfp4": True}, "KV cache in BF16 or FP8"),
        ((12, 1), {"logits_soft_cap": 30.0}, "soft cap"),
        ((12, 1), {"races": True}, "races"),
    ],
)
def test_what_it_cannot_serve_is_refused_with_the_reason(capability, monkeypatch, device, unfit, words):
    import types

    xqa = module()
    capability(*device)
    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setattr(xqa, "_is_ordered", lambda: not unfit.pop("races", False))
    usual = {"use_dcp": False, "is_kvcache_nvfp4": False, "logits_soft_cap": None}
    group = types.SimpleNamespace(**(usual | {name: value for name, value in unfit.items() if name != "races"}))
    with pytest.raises(ValueError, match=words):
        xqa.decodes_by_xqa(group)


def test_the_switch_is_declared_and_enters_the_compile_key(monkeypatch):
    from vllm import envs

    before = envs.compile_factors().get(SWITCH)
    monkeypatch.setenv(SWITCH, "1")
    assert (before, envs.compile_factors().get(SWITCH)) == (False, True)


def test_the_real_kernel_takes_the_arguments_that_are_passed(step, xqa, monkeypatch):
    module()
    import inspect

    from flashinfer.decode import xqa_batch_decode_with_kv_cache

    monkeypatch.setenv(SWITCH, "1")
    step(decodes=[20], prefills=[])
    passed = set(xqa[0]) | {"query", "kv_cache", "block_tables", "seq_lens", "out", "kv_layout"}
    assert not passed - set(inspect.signature(inspect.unwrap(xqa_batch_decode_with_kv_cache)).parameters)
