"""FlashInfer's attention backend on a CPU: its wrappers compute by their definition what the kernels promise.

The fixtures are taken into conftest.py, so that the tests of several patches run one mixed batch through the backend's
own builder and layer.
"""

from __future__ import annotations

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
