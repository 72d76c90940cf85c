"""F-03: decode with attention sinks reaches a kernel that has them, and no wrapper drops them.

The compiled module is replaced by the same computation in torch, with the arguments of the real
`paged_run`, so that scales, layouts and buffers are followed from the wrapper to the numbers.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from types import SimpleNamespace

import pytest
import torch

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
HEADS, KV_HEADS, DIM = 16, 2, 64


class Kernel:
    """A module with sinks, as compiled; remembers how it was planned and run."""

    def __init__(self, uri, kv_dtype):
        self.uri, self.kv_dtype = uri, kv_dtype
        self.plans, self.runs = [], []

    def plan(self, *args):
        self.plans.append(args)
        return [len(self.plans)]

    def ragged_run(self, *args):
        raise NotImplementedError

    def paged_run(
        self,
        _float,
        _int,
        _plan,
        q,
        k,
        v,
        qo_indptr,
        indptr,
        indices,
        last,
        o,
        lse,
        _mask,
        layout,
        window,
        _pdl,
        sink,
        sm_scale,
    ):
        self.runs.append((q, k, v, qo_indptr, indptr, indices, last, sink, sm_scale))
        assert (k.dtype, v.dtype) == (self.kv_dtype, self.kv_dtype), f"{self.uri} was given {k.dtype}"
        for request in range(len(last)):
            keys, values = (
                tokens(cache, layout, indices[indptr[request] : indptr[request + 1]], int(last[request]))
                for cache in (k, v)
            )
            length = len(keys)
            first = 0 if window < 0 else max(0, length - 1 - window)
            for row in range(int(qo_indptr[request]), int(qo_indptr[request + 1])):
                for head in range(q.shape[1]):
                    kv_head = head // (q.shape[1] // keys.shape[1])
                    logits = keys[first:, kv_head].float() @ q[row, head].float() * sm_scale
                    top = max(float(logits.max()), float(sink[head]))
                    weights = torch.exp(logits - top)
                    total = weights.sum() + math.exp(float(sink[head]) - top)
                    o[row, head] = (weights @ values[first:, kv_head].float() / total).to(o.dtype)
                    if lse is not None:
                        lse[row, head] = (math.log(float(total)) + top) / math.log(2)


def tokens(cache, layout, pages, last):
    """[length, kv heads, dim] of one request; layout 1 is HND."""
    chosen = cache[pages.long()]
    if layout == 1:
        chosen = chosen.transpose(1, 2)
    return chosen.reshape(-1, *chosen.shape[2:])[: (len(pages) - 1) * chosen.shape[1] + last]


@pytest.fixture(scope="module")
def kernels():
    return {}


@pytest.fixture(autouse=True)
def fakes(monkeypatch, kernels):
    """No compiler, and no page-locked memory, which needs a GPU."""
    from flashinfer import decode, prefill

    def generate(_backend, uri, _dtype_q, dtype_kv, *_args, **_kwargs):
        kernel = kernels.setdefault(uri, Kernel(uri, dtype_kv))
        return SimpleNamespace(build_and_load=lambda: kernel)

    for module in (prefill, decode):
        monkeypatch.setattr(module, "gen_customize_batch_prefill_module", generate)

    nothing = dict.fromkeys(("paged_run", "ragged_run", "run"), lambda *_: None)
    plain = SimpleNamespace(plan=lambda *_: [0], **nothing)
    for module, name in (
        (prefill, "get_batch_prefill_module"),
        (decode, "get_batch_prefill_module"),
        (decode, "get_batch_decode_module"),
    ):
        monkeypatch.setattr(module, name, lambda *_: plain)

    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **k: empty(*a, **k))  # noqa: PLW0108
    for runs in kernels.values():
        runs.plans.clear()
        runs.runs.clear()


def refusal(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    raise AssertionError("the sinks were dropped without a word")


def decode_wrapper(layout="NHD", **kwargs):
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    known = inspect.signature(BatchDecodeWithPagedKVCacheWrapper.__init__).parameters
    assert "use_sinks" in known, "the decode wrapper has no sinks"
    return BatchDecodeWithPagedKVCacheWrapper(torch.empty(1024), layout, use_sinks=True, **kwargs)


def problem(lengths, page_size, layout, kv_dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    pages = [-(-length // page_size) for length in lengths]
    total = sum(pages)
    shape = (total, KV_HEADS, page_size, DIM) if layout == "HND" else (total, page_size, KV_HEADS, DIM)
    k, v = (torch.randn(shape, generator=generator) for _ in range(2))
    return SimpleNamespace(
        q=torch.randn(len(lengths), HEADS, DIM, generator=generator).to(BF16),
        k=(k * 4 if kv_dtype == FP8 else k).to(kv_dtype),
        v=(v * 2 if kv_dtype == FP8 else v).to(kv_dtype),
        indptr=torch.tensor([0, *pages], dtype=torch.int32).cumsum(0).int(),
        indices=torch.randperm(total, generator=generator).int(),
        last=torch.tensor([(n - 1) % page_size + 1 for n in lengths], dtype=torch.int32),
        sinks=torch.randn(HEADS, generator=generator) * 2,
        lengths=lengths,
        page_size=page_size,
        layout=layout,
    )


def plan(wrapper, p, window=-1, **kwargs):
    kwargs = {"q_data_type": BF16, "kv_data_type": p.k.dtype} | kwargs
    wrapper.plan(p.indptr, p.indices, p.last, HEADS, KV_HEADS, DIM, p.page_size, window_left=window, **kwargs)


def expected(p, window=-1, k_scale=1.0, v_scale=1.0, sm_scale=None):
    """Softmax over the keys and the sink, in float64, from the definition."""
    out = torch.zeros(len(p.lengths), HEADS, DIM, dtype=torch.float64)
    for request, length in enumerate(p.lengths):
        pages = p.indices[p.indptr[request] : p.indptr[request + 1]].long()
        k, v = p.k[pages].double() * k_scale, p.v[pages].double() * v_scale
        if p.layout == "HND":
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        k, v = k.reshape(-1, KV_HEADS, DIM)[:length], v.reshape(-1, KV_HEADS, DIM)[:length]
        if window >= 0:
            k, v = k[max(0, length - 1 - window) :], v[max(0, length - 1 - window) :]
        k, v = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (k, v))
        logits = torch.einsum("hd,nhd->hn", p.q[request].double(), k) * (sm_scale or DIM**-0.5)
        weights = torch.softmax(torch.cat([logits, p.sinks.double()[:, None]], dim=1), dim=1)[:, :-1]
        out[request] = torch.einsum("hn,nhd->hd", weights, v)
    return out


def close(got, want):
    torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("window", [-1, 127])
@pytest.mark.parametrize(("kv_dtype", "k_scale", "v_scale"), [(BF16, None, None), (FP8, 0.25, 0.5)])
def test_decode_counts_the_sinks(layout, window, kv_dtype, k_scale, v_scale):
    p = problem([1, 128, 300], 16, layout, kv_dtype)
    wrapper = decode_wrapper(layout)
    plan(wrapper, p, window)
    out = wrapper.run(p.q, (p.k, p.v), sinks=p.sinks, k_scale=k_scale, v_scale=v_scale, enable_pdl=False)
    scales = k_scale or 1.0, v_scale or 1.0
    close(out, expected(p, window, *scales))
    p.sinks = torch.full((HEADS,), -1e4)
    assert (out.double() - expected(p, window, *scales)).abs().max() > 0.05, "the sinks changed nothing"


def test_a_bf16_cache_then_an_fp8_cache_in_one_process(kernels):
    for kv_dtype, scale in ((BF16, 1.0), (FP8, 0.25), (BF16, 1.0)):
        p = problem([40, 7], 16, "NHD", kv_dtype)
        wrapper = decode_wrapper()
        plan(wrapper, p)
        out = wrapper.run(p.q, (p.k, p.v), sinks=p.sinks, k_scale=scale, v_scale=scale, enable_pdl=False)
        close(out, expected(p, -1, scale, scale))
    assert len({kernel.uri for kernel in kernels.values() if kernel.plans}) == 2


def test_sm_scale_of_the_plan_is_used():
    p = problem([33], 16, "NHD", BF16)
    wrapper = decode_wrapper()
    plan(wrapper, p, sm_scale=0.5)
    close(wrapper.run(p.q, (p.k, p.v), sinks=p.sinks, enable_pdl=False), expected(p, sm_scale=0.5))


def test_decode_asks_for_split_kv_and_the_window_of_the_plan(kernels):
    p = problem([5000], 16, "NHD", BF16)
    wrapper = decode_wrapper()
    plan(wrapper, p, 127, fixed_split_size=64)
    (kernel,) = (kernel for kernel in kernels.values() if kernel.plans)
    (args,) = kernel.plans
    assert len(args) == 19, "the fa2 module is planned with 19 arguments"
    assert args[15:] == (127, 64, False, 0)


def test_replayed_graphs_keep_their_buffers_while_lengths_change(kernels):
    first, second = problem([17, 300], 16, "NHD", BF16), problem([5, 29], 16, "NHD", BF16, seed=1)
    wrapper = decode_wrapper(
        use_cuda_graph=True,
        paged_kv_indptr_buffer=torch.zeros(3, dtype=torch.int32),
        paged_kv_indices_buffer=torch.zeros(64, dtype=torch.int32),
        paged_kv_last_page_len_buffer=torch.zeros(2, dtype=torch.int32),
    )
    seen = []
    for p in (first, second):
        plan(wrapper, p)
        close(wrapper.run(p.q, (p.k, p.v), sinks=p.sinks, enable_pdl=False), expected(p))
        (kernel,) = (kernel for kernel in kernels.values() if kernel.runs)
        seen.append([tensor.data_ptr() for tensor in kernel.runs[-1][3:7]])
        assert kernel.plans[-1][11] is True, "planned as if no graph would replay it"
    assert seen[0] == seen[1], "a replay would read the lengths of the first plan"


def test_fast_decode_plan_serves_the_module_with_sinks(monkeypatch):
    from flashinfer import fast_decode_plan

    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    p = problem([17, 300], 16, "NHD", BF16)
    wrapper = decode_wrapper()
    plan(wrapper, p)
    longer = problem([60, 300], 16, "NHD", BF16, seed=2)
    fast_decode_plan(
        wrapper,
        longer.indptr,
        longer.indices,
        longer.last,
        HEADS,
        KV_HEADS,
        DIM,
        16,
        q_data_type=BF16,
        kv_data_type=BF16,
    )
    close(wrapper.run(longer.q, (longer.k, longer.v), sinks=longer.sinks, enable_pdl=False), expected(longer))


def test_the_logsumexp_holds_the_sink():
    p = problem([1], 16, "NHD", BF16)
    p.sinks = torch.full((HEADS,), 50.0)
    wrapper = decode_wrapper()
    plan(wrapper, p)
    _, lse = wrapper.run(p.q, (p.k, p.v), sinks=p.sinks, return_lse=True, enable_pdl=False)
    torch.testing.assert_close(lse, torch.full_like(lse, 50.0 / math.log(2)), rtol=1e-3, atol=1e-2)


def test_no_wrapper_drops_sinks():
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper

    p = problem([20], 16, "NHD", BF16)
    for tensor_cores in (False, True):
        wrapper = BatchDecodeWithPagedKVCacheWrapper(torch.empty(1024), use_tensor_cores=tensor_cores)
        plan(wrapper, p)
        assert "sinks" in refusal(lambda: wrapper.run(p.q, (p.k, p.v), sinks=p.sinks, enable_pdl=False))

    wrapper = BatchPrefillWithPagedKVCacheWrapper(torch.empty(1024), backend="fa2")
    qo_indptr = torch.tensor([0, 1], dtype=torch.int32)
    wrapper.plan(qo_indptr, p.indptr, p.indices, p.last, HEADS, KV_HEADS, DIM, 16, q_data_type=BF16)
    assert "sinks" in refusal(lambda: wrapper.run(p.q, (p.k, p.v), sinks=p.sinks, enable_pdl=False))


def test_sinks_that_are_missing_or_do_not_fit_are_refused():
    p = problem([20], 16, "NHD", BF16)
    wrapper = decode_wrapper()
    plan(wrapper, p)
    for sinks in (None, p.sinks[:-1], p.sinks.to(BF16), p.sinks[None]):
        assert "sinks" in refusal(lambda: wrapper.run(p.q, (p.k, p.v), sinks=sinks, enable_pdl=False))


def test_what_no_kernel_with_sinks_does_is_refused():
    p = problem([20], 16, "NHD", BF16)
    wrapper = decode_wrapper()
    assert "soft_cap" in refusal(lambda: plan(wrapper, p, logits_soft_cap=30.0))
    assert "ROPE_LLAMA" in refusal(lambda: plan(wrapper, p, pos_encoding_mode="ROPE_LLAMA"))
    assert "float8" in refusal(lambda: plan(wrapper, p, q_data_type=FP8))
    assert "fa3" in refusal(lambda: decode_wrapper(backend="fa3"))
    assert "jit_args" in refusal(lambda: decode_wrapper(jit_args=["uri"]))


def sink_wrapper(**kwargs):
    from flashinfer import BatchAttentionWithAttentionSinkWrapper

    return BatchAttentionWithAttentionSinkWrapper(
        torch.empty(1024), backend="fa2", q_data_type=BF16, head_dim_qk=DIM, head_dim_vo=DIM, **kwargs
    )


@pytest.mark.parametrize("by_name", [True, False])
def test_the_prefill_wrapper_counts_the_sinks(by_name):
    p = problem([20], 16, "NHD", FP8)
    wrapper = sink_wrapper(kv_data_type=FP8)
    qo_indptr = torch.tensor([0, 1], dtype=torch.int32)
    wrapper.plan(qo_indptr, p.indptr, p.indices, p.last, HEADS, KV_HEADS, DIM, 16, q_data_type=BF16, kv_data_type=FP8)
    if by_name:
        known = "sinks" in inspect.signature(type(wrapper).run).parameters and "run" in vars(type(wrapper))
        assert known, "the wrapper with sinks takes none by name"
        out = wrapper.run(p.q, (p.k, p.v), sinks=p.sinks, k_scale=0.25, v_scale=0.5, enable_pdl=False)
    else:
        out = wrapper.run(p.q, (p.k, p.v), p.sinks, 0.25 * DIM**-0.5, v_scale=0.5, enable_pdl=False)
    close(out, expected(p, -1, 0.25, 0.5))


def test_the_prefill_wrapper_refuses_what_it_was_not_compiled_for():
    p = problem([20], 16, "NHD", FP8)
    wrapper = sink_wrapper(kv_data_type=BF16)
    qo_indptr = torch.tensor([0, 1], dtype=torch.int32)
    wrapper.plan(qo_indptr, p.indptr, p.indices, p.last, HEADS, KV_HEADS, DIM, 16, q_data_type=BF16, kv_data_type=FP8)
    assert "compiled for" in refusal(lambda: wrapper.run(p.q, (p.k, p.v), p.sinks, 0.125, enable_pdl=False))
