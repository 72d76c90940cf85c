"""Time of one decode step of attention with sinks: the decode wrapper, the prefill wrapper, Triton.

    PYTHONPATH=<patched package> python bench_sinks.py [--json result.json] [--batch 1,4,16,64] [--context 2048,...]

Heads as gpt-oss-120b has them: 64 query heads, 8 KV heads, head_dim 64. Each variant is captured into a CUDA
graph and replayed on cold caches: every replay reads another copy of the KV, enough copies to exceed the L2
cache several times. Reported: microseconds (median and spread), and the bytes of the KV read in that time
as a share of the bandwidth of a plain read measured in the same run. Without vLLM the Triton column is empty, with the
reason in the JSON. The unpatched pin has no decode wrapper with sinks; `--only prefill,triton` runs there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch

KV_HEADS, GROUP, HEAD_DIM, PAGE = 8, 8, 64, 16
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


def timed(step: Callable[[int], None], copies: int, samples: int) -> list[float]:
    """Microseconds of each replay; replay i uses copy i of the cache."""
    graphs = []
    for copy in range(copies):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step(copy)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(copy)
        graphs.append(graph)
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(samples)]
    for _ in range(3):
        for graph in graphs:
            graph.replay()
    torch.cuda.synchronize()
    for i, (start, stop) in enumerate(events):
        start.record()
        graphs[i % copies].replay()
        stop.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(stop) * 1000 for start, stop in events]


def read_bandwidth() -> float:
    """Bytes a second of a reduction over 4 GiB, the best of ten."""
    buffer = torch.zeros(1 << 30, dtype=torch.float32, device="cuda")
    best = 0.0
    for _ in range(10):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        buffer.sum()
        stop.record()
        torch.cuda.synchronize()
        best = max(best, buffer.numel() * 4 / (start.elapsed_time(stop) / 1000))
    return best


class Problem:
    """KV of `batch` requests of `context` keys, in as many copies as keep the caches cold."""

    def __init__(self, batch: int, context: int, kv_dtype: torch.dtype, window: int) -> None:
        self.batch, self.context, self.kv_dtype, self.window = batch, context, kv_dtype, window
        pages = -(-context // PAGE)
        visible = context if window < 0 else min(context, window + 1)
        self.bytes = 2 * batch * visible * KV_HEADS * HEAD_DIM * kv_dtype.itemsize
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        self.copies = max(2, min(16, -(-4 * l2 // self.bytes)))
        shape = (self.copies, batch * pages, 2, PAGE, KV_HEADS, HEAD_DIM)
        self.kv = torch.zeros(shape, dtype=torch.uint8 if kv_dtype == FP8 else kv_dtype, device="cuda")
        for copy in self.kv:
            copy.random_(0, 0x78) if kv_dtype == FP8 else copy.normal_()
        self.kv = self.kv.view(kv_dtype)
        self.q = torch.randn(batch, KV_HEADS * GROUP, HEAD_DIM, device="cuda", dtype=BF16)
        self.out = torch.empty_like(self.q)
        self.sinks = torch.randn(KV_HEADS * GROUP, device="cuda")
        self.indptr = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * pages
        self.indices = torch.randperm(batch * pages, device="cuda").int()
        self.last = torch.full((batch,), (context - 1) % PAGE + 1, dtype=torch.int32, device="cuda")
        self.pages = pages
        self.workspace = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")

    def cache(self, copy: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.kv[copy, :, 0], self.kv[copy, :, 1]


def decode(p: Problem) -> Callable[[int], None]:
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        p.workspace, use_sinks=True, use_cuda_graph=True, paged_kv_indptr_buffer=p.indptr.clone(),
        paged_kv_indices_buffer=p.indices.clone(), paged_kv_last_page_len_buffer=p.last.clone(),
    )  # fmt: skip
    wrapper.plan(p.indptr, p.indices, p.last, KV_HEADS * GROUP, KV_HEADS, HEAD_DIM, PAGE, window_left=p.window,
                 q_data_type=BF16, kv_data_type=p.kv_dtype)  # fmt: skip
    return lambda copy: wrapper.run(p.q, p.cache(copy), sinks=p.sinks, out=p.out)


def prefill(p: Problem) -> Callable[[int], None]:
    from flashinfer import BatchAttentionWithAttentionSinkWrapper

    qo_indptr = torch.arange(p.batch + 1, dtype=torch.int32, device="cuda")
    wrapper = BatchAttentionWithAttentionSinkWrapper(
        p.workspace, backend="fa2", use_cuda_graph=True, qo_indptr_buf=qo_indptr.clone(), q_data_type=BF16,
        kv_data_type=p.kv_dtype, head_dim_qk=HEAD_DIM, head_dim_vo=HEAD_DIM, window_left=p.window,
        paged_kv_indptr_buf=p.indptr.clone(), paged_kv_indices_buf=p.indices.clone(), paged_kv_last_page_len_buf=p.last.clone(),
    )  # fmt: skip
    wrapper.plan(qo_indptr, p.indptr, p.indices, p.last, KV_HEADS * GROUP, KV_HEADS, HEAD_DIM, PAGE, causal=True,
                 window_left=p.window, q_data_type=BF16, kv_data_type=p.kv_dtype)  # fmt: skip
    return lambda copy: wrapper.run(p.q, p.cache(copy), p.sinks, HEAD_DIM**-0.5, out=p.out)


def triton(p: Problem) -> Callable[[int], None]:
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    heads, most, segments = KV_HEADS * GROUP, 128 // KV_HEADS, 16  # as the TRITON_ATTN backend sets them
    table = p.indices.view(p.batch, p.pages)
    lengths = torch.full((p.batch,), p.context, dtype=torch.int32, device="cuda")
    starts = torch.arange(p.batch + 1, dtype=torch.int32, device="cuda")
    segment_out = torch.empty(most, heads, segments, HEAD_DIM, device="cuda")
    segment_max, segment_sum = (torch.empty(most, heads, segments, device="cuda") for _ in range(2))
    scale = torch.ones(p.batch, KV_HEADS, device="cuda")
    sinks = p.sinks.to(BF16)

    def step(copy: int) -> None:
        k, v = p.cache(copy)
        unified_attention(
            q=p.q, k=k, v=v, out=p.out, cu_seqlens_q=starts, max_seqlen_q=1, seqused_k=lengths,
            max_seqlen_k=p.context, softmax_scale=HEAD_DIM**-0.5, causal=True,
            window_size=(p.window, 0) if p.window >= 0 else (-1, -1), block_table=table, softcap=0,
            q_descale=None, k_descale=scale, v_descale=scale, seq_threshold_3D=most,
            num_par_softmax_segments=segments, softmax_segm_output=segment_out, softmax_segm_max=segment_max,
            softmax_segm_expsum=segment_sum, sinks=sinks,
        )  # fmt: skip

    return step


VARIANTS = {"decode": decode, "prefill": prefill, "triton": triton}


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=numbers, default=[1, 4, 16, 64])
    parser.add_argument("--context", type=numbers, default=[2048, 8192, 32768, 131072])
    parser.add_argument("--window", type=numbers, default=[-1, 127])
    parser.add_argument("--kv", default="bf16,fp8")
    parser.add_argument("--only", default="decode,prefill,triton")
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    import flashinfer
    from flashinfer.jit import env as jit_env

    bandwidth = read_bandwidth()
    print(f"{torch.cuda.get_device_name()}: plain read {bandwidth / 1e9:.0f} GB/s")
    variants = options.only.split(",")
    print(f"{'kv':5}{'window':>7}{'batch':>6}{'context':>8}" + "".join(f"{name + ' us':>13}{'share':>7}" for name in variants))
    rows, reasons = [], {}
    for kv in options.kv.split(","):
        for window in options.window:
            for context in options.context:
                for batch in options.batch:
                    p = Problem(batch, context, FP8 if kv == "fp8" else BF16, window)
                    line = f"{kv:5}{window:7}{batch:6}{context:8}"
                    for name in variants:
                        try:
                            samples = timed(VARIANTS[name](p), p.copies, options.samples)
                        except Exception as problem:  # a variant that cannot run here is a row that says so
                            reasons.setdefault(name, f"{type(problem).__name__}: {problem}"[:300])
                            line += f"{'-':>13}{'-':>7}"
                            continue
                        median = statistics.median(samples)
                        share = p.bytes / (median * 1e-6) / bandwidth
                        line += f"{median:13.1f}{share:7.1%}"
                        rows.append({
                            "variant": name, "kv": kv, "window": window, "batch": batch, "context": context,
                            "bytes": p.bytes, "copies": p.copies, "median_us": median, "share": share, "samples_us": samples,
                        })  # fmt: skip
                    print(line, flush=True)
                    del p
                    torch.cuda.empty_cache()
    for name, reason in reasons.items():
        print(f"{name} did not run everywhere: {reason}")
    if options.json:
        options.json.write_text(json.dumps({
            "benchmark": "sinks", "device": torch.cuda.get_device_name(), "torch": torch.__version__,
            "cuda": torch.version.cuda, "flashinfer": flashinfer.__version__, "tree": getattr(jit_env, "FLASHINFER_TREE_ID", ""),
            "read_bandwidth": bandwidth, "rows": rows, "not_run": reasons,
        }) + "\n")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
