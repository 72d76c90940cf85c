"""V-04: on compute capability 12.x FlashInfer serves layers with attention sinks, by FA2, prefill and decode."""

from __future__ import annotations

import sys
import types

import pytest

PAGE, HEADS, KV_HEADS, DIM = 16, 8, 2, 64


@pytest.fixture
def backend(monkeypatch):
    """The FlashInfer backend's module; a FlashInfer with sinks in its decode wrapper is taken as installed."""
    import torch
    from vllm.v1.attention.backends import flashinfer

    if hasattr(flashinfer, "fa2_takes_sinks"):
        from vllm.v1.attention.backends import flashinfer_sinks

        monkeypatch.setattr(flashinfer_sinks, "_wrapper_has_sinks", lambda: True)

    class CopyPages:
        """What the Triton kernel of that name does, on the CPU."""

        def __getitem__(self, grid):
            def copy(indices, table, stride, indptr, BLOCK_SIZE):  # noqa: N803  the kernel's name for it
                for row, (low, high) in enumerate(zip(indptr[:-1].tolist(), indptr[1:].tolist(), strict=True)):
                    indices[low:high] = table[row, : high - low]

            return copy

    monkeypatch.setattr(flashinfer, "_copy_page_indices_kernel", CopyPages())
    monkeypatch.setattr(flashinfer, "is_pin_memory_available", lambda: False)
    monkeypatch.setenv("VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE", str(1 << 20))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, *_: self)
    return flashinfer


def attention(q, k, v, sinks, scale, window):
    """Attention of the last len(q) of len(k) tokens, float64: a sink is one more logit without a value."""
    import torch

    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    logits = torch.einsum("qhd,khd->hqk", q, k) * scale
    at = torch.arange(len(k) - len(q), len(k)).unsqueeze(1)
    keys = torch.arange(len(k)).unsqueeze(0)
    hidden = keys > at
    if window >= 0:
        hidden |= keys < at - window
    logits = logits.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        logits = torch.cat([logits, sinks.double().view(-1, 1, 1).expand(-1, len(q), 1)], -1)
    weights = torch.softmax(logits, -1)[..., : len(k)]
    return torch.einsum("hqk,khd->qhd", weights, v)


@pytest.fixture
def wrappers(backend, monkeypatch):
    """Stand-ins for FlashInfer's wrappers that compute what those promise; returns the list of what was made."""
    made: list = []

    class Reference:
        def __init__(self, workspace, layout="NHD", **given):
            self.layout, self.given, self.planned = layout, given, []
            made.append(self)

        def plan(self, **given):
            import torch

            self.planned.append(given)
            p = types.SimpleNamespace(**given)
            self._window_left, self._sm_scale = p.window_left, p.sm_scale
            self._logits_soft_cap, self._causal = p.logits_soft_cap or 0.0, given.get("causal", True)
            decode = "indptr" in given
            pages = p.indptr if decode else p.paged_kv_indptr
            last = p.last_page_len if decode else p.paged_kv_last_page_len
            self.rows = torch.arange(len(pages)) if decode else p.qo_indptr
            indices = p.indices if decode else p.paged_kv_indices
            self.pages = [indices[a:b] for a, b in zip(pages[:-1].tolist(), pages[1:].tolist(), strict=True)]
            self.last = last.tolist()

        def run(self, q, kv, *, k_scale=None, v_scale=None, sinks=None, out, kv_cache_sf=None):
            import torch

            assert sinks is None or (sinks.dtype == torch.float32 and sinks.shape == (q.shape[1],))
            assert self.layout == "NHD"
            for i, (pages, last) in enumerate(zip(self.pages, self.last, strict=True)):
                low, high = int(self.rows[i]), int(self.rows[i + 1])
                length = (len(pages) - 1) * PAGE + last
                k, v = (kv[pages.long(), part].float().flatten(0, 1)[:length] for part in (0, 1))
                scale = self._sm_scale * (k_scale or 1.0)
                y = attention(q[low:high], k, v, sinks, scale, self._window_left) * (v_scale or 1.0)
                out[low:high] = y.to(out.dtype)
            return out

    class Prefill(Reference, backend.BatchPrefillWithPagedKVCacheWrapper):
        def __init__(self, *args, **given):
            Reference.__init__(self, *args, **given)
            self.kind = "prefill"

        plan, run = Reference.plan, Reference.run

    class SinkPrefill(Prefill):
        def __init__(self, *args, **given):
            Prefill.__init__(self, *args, **given)
            self.kind = "sink prefill"

    class Decode(Reference):
        is_cuda_graph_enabled = False

        def __init__(self, *args, **given):
            Reference.__init__(self, *args, **given)
            self.kind = "decode"

    monkeypatch.setattr(backend, "BatchPrefillWithPagedKVCacheWrapper", Prefill)
    monkeypatch.setattr(backend, "BatchDecodeWithPagedKVCacheWrapper", Decode)
    if hasattr(backend, "fa2_takes_sinks"):
        from vllm.v1.attention.backends import flashinfer_sinks

        monkeypatch.setattr(flashinfer_sinks, "BatchAttentionWithAttentionSinkWrapper", SinkPrefill)
    return made


def register(config, impl) -> None:
    """Put a layer with that implementation where the builder looks for it."""
    import torch
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    class Held(torch.nn.Module, AttentionLayerBase):
        get_attn_backend = get_kv_cache_spec = None

    Held.__abstractmethods__ = frozenset()
    holder = Held()
    holder.impl = impl
    config.compilation_config.static_forward_context["layer"] = holder


@pytest.fixture
def step(one_rank, capability, backend, wrappers, tiny_config):
    """A function that runs one mixed batch (decodes first) through builder and layer and returns
    (what FlashInfer answers, what attention with sinks is)."""

    def once(*, decodes, prefills, window=None, cache="auto", sinks=True, device=(12, 1)):
        import torch
        from vllm.config import set_current_vllm_config
        from vllm.v1.attention.backend import CommonAttentionMetadata
        from vllm.v1.kv_cache_interface import FullAttentionSpec, get_kv_quant_mode

        capability(*device)
        config = tiny_config(cache_dtype=cache)
        generator = torch.Generator().manual_seed(5)

        def random(*shape):
            return torch.randn(*shape, generator=generator).to(torch.bfloat16)

        layer = types.SimpleNamespace(_q_scale_float=1.0, _k_scale_float=1.0, _v_scale_float=1.0)
        if cache != "auto":
            layer._k_scale_float, layer._v_scale_float = 0.5, 2.0
        sink = random(HEADS) * 3 if sinks else None
        with set_current_vllm_config(config):
            impl = backend.FlashInferImpl(
                HEADS, DIM, DIM**-0.5, KV_HEADS, None, window, cache, sinks=sink.clone() if sinks else None
            )
            impl.dcp_world_size = 1
            impl.process_weights_after_loading(torch.bfloat16)
            register(config, impl)
            spec = FullAttentionSpec(
                block_size=PAGE,
                num_kv_heads=KV_HEADS,
                head_size=DIM,
                dtype=torch.bfloat16 if cache == "auto" else torch.uint8,
                kv_quant_mode=get_kv_quant_mode(cache),
            )
            try:
                builder = backend.FlashInferMetadataBuilder(spec, ["layer"], config, torch.device("cpu"))
            except NotImplementedError as refusal:
                pytest.fail(f"refused: {refusal}")
            lengths = [(1, n) for n in decodes] + list(prefills)
            ends = torch.tensor([0] + [new for new, _ in lengths]).cumsum(0).to(torch.int32)
            seq = torch.tensor([n for _, n in lengths], dtype=torch.int32)
            most = max(n for _, n in lengths)
            rows = -(-most // PAGE)
            table = torch.randperm(len(lengths) * rows, generator=generator).view(len(lengths), rows).to(torch.int32)
            dtype = torch.bfloat16 if cache == "auto" else torch.float8_e4m3fn
            kv = random(len(lengths) * rows, 2, PAGE, KV_HEADS, DIM).to(dtype)
            tokens = int(ends[-1])
            metadata = builder.build(
                0,
                CommonAttentionMetadata(
                    query_start_loc=ends,
                    query_start_loc_cpu=ends,
                    seq_lens=seq,
                    _seq_lens_cpu=seq,
                    num_reqs=len(lengths),
                    num_actual_tokens=tokens,
                    max_query_len=max(new for new, _ in lengths),
                    max_seq_len=most,
                    block_table_tensor=table,
                    slot_mapping=torch.zeros(tokens, dtype=torch.int64),
                ),
            )
            q = random(tokens, HEADS, DIM)
            out = torch.zeros_like(q)
            held = kv if cache == "auto" else kv.view(torch.uint8)
            impl.forward(layer, q, q[:, :KV_HEADS], q[:, :KV_HEADS], held, metadata, out)
        want = []
        for i, (new, n) in enumerate(lengths):
            flat = kv[table[i].long()].float()
            k, v = (flat[:, part].flatten(0, 1)[:n] for part in (0, 1))
            scale = DIM**-0.5 * layer._k_scale_float
            low = int(ends[i])
            left = -1 if window is None else window - 1
            want.append(attention(q[low : low + new], k, v, sink, scale, left) * layer._v_scale_float)
        return out, torch.cat(want)

    return once


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
    # The platform's module imports compiled code that a CPU build does not have.
    monkeypatch.setitem(sys.modules, "vllm._C_stable_libtorch", types.ModuleType("vllm._C_stable_libtorch"))
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
