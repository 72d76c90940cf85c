"""Time of one decode step of attention with sinks: the decode wrapper, the prefill wrapper, Triton.

    PYTHONPATH=<patched package> python bench_sinks.py [--json result.json] [--pin <pin's package>] [--vllm <its sources>]

Heads as gpt-oss-120b has them: 64 query heads, 8 KV heads, head_dim 64. Each variant is captured into a CUDA graph
and replayed on cold caches: before each replay a buffer of four times the L2 cache is read. Reported: microseconds
(median; every sample is in the JSON), and the bytes of the visible KV as a share of what a plain read, measured in the
same run, moves in that time. `--pin` runs the prefill wrapper of the unpatched pin in the same run: a process for each
type of cache and window, right after the one of the patched tree, because two FlashInfers do not share a process and
because the pin's modules for BF16 and FP8 caches have one name. Without vLLM the Triton column is empty, with the reason
in the JSON. The pin has no decode wrapper with sinks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).parent))

import vllm_triton

from sparkforge.results.provenance import Run, tell

KV_HEADS, GROUP, HEAD_DIM, PAGE = 8, 8, 64, 16
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


class Clock:
    """Times replays of one graph, each after the caches were filled with something else."""

    def __init__(self) -> None:
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        # Read, not written: lines to write back would slow down what is measured.
        self.other = torch.zeros(l2, dtype=torch.float32, device="cuda")
        self.sum = torch.empty((), device="cuda")

    def microseconds(self, step: Callable[[], None], samples: int) -> list[float]:
        """Microseconds of each replay."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(samples)]
        for _ in range(5):
            graph.replay()
        torch.cuda.synchronize()
        for start, stop in events:
            torch.sum(self.other, dim=0, out=self.sum)
            start.record()
            graph.replay()
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
    """KV of `batch` requests of `context` keys."""

    def __init__(self, batch: int, context: int, kv_dtype: torch.dtype, window: int, vllm: Path | None) -> None:
        self.batch, self.context, self.kv_dtype, self.window, self.vllm = batch, context, kv_dtype, window, vllm
        pages = -(-context // PAGE)
        visible = context if window < 0 else min(context, window + 1)
        self.bytes = 2 * batch * visible * KV_HEADS * HEAD_DIM * kv_dtype.itemsize
        shape = (batch * pages, 2, PAGE, KV_HEADS, HEAD_DIM)
        self.kv = torch.empty(shape, dtype=torch.uint8 if kv_dtype == FP8 else kv_dtype, device="cuda")
        for part in self.kv.split(1 << 18):
            part.random_(0, 0x78) if kv_dtype == FP8 else part.normal_()
        self.kv = self.kv.view(kv_dtype)
        self.q = torch.randn(batch, KV_HEADS * GROUP, HEAD_DIM, device="cuda", dtype=BF16)
        self.out = torch.empty_like(self.q)
        self.sinks = torch.randn(KV_HEADS * GROUP, device="cuda")
        self.indptr = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * pages
        self.indices = torch.randperm(batch * pages, device="cuda").int()
        self.last = torch.full((batch,), (context - 1) % PAGE + 1, dtype=torch.int32, device="cuda")
        self.pages = pages
        self.workspace = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")

    @property
    def cache(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.kv[:, 0], self.kv[:, 1]


def decode(p: Problem) -> Callable[[], None]:
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        p.workspace, use_sinks=True, use_cuda_graph=True, paged_kv_indptr_buffer=p.indptr.clone(),
        paged_kv_indices_buffer=p.indices.clone(), paged_kv_last_page_len_buffer=p.last.clone(),
    )  # fmt: skip
    wrapper.plan(p.indptr, p.indices, p.last, KV_HEADS * GROUP, KV_HEADS, HEAD_DIM, PAGE, window_left=p.window,
                 q_data_type=BF16, kv_data_type=p.kv_dtype)  # fmt: skip
    return lambda: wrapper.run(p.q, p.cache, sinks=p.sinks, out=p.out)


def prefill(p: Problem) -> Callable[[], None]:
    from flashinfer import BatchAttentionWithAttentionSinkWrapper

    qo_indptr = torch.arange(p.batch + 1, dtype=torch.int32, device="cuda")
    wrapper = BatchAttentionWithAttentionSinkWrapper(
        p.workspace, backend="fa2", use_cuda_graph=True, qo_indptr_buf=qo_indptr.clone(), q_data_type=BF16,
        kv_data_type=p.kv_dtype, head_dim_qk=HEAD_DIM, head_dim_vo=HEAD_DIM, window_left=p.window,
        paged_kv_indptr_buf=p.indptr.clone(), paged_kv_indices_buf=p.indices.clone(), paged_kv_last_page_len_buf=p.last.clone(),
    )  # fmt: skip
    wrapper.plan(qo_indptr, p.indptr, p.indices, p.last, KV_HEADS * GROUP, KV_HEADS, HEAD_DIM, PAGE, causal=True,
                 window_left=p.window, q_data_type=BF16, kv_data_type=p.kv_dtype)  # fmt: skip
    return lambda: wrapper.run(p.q, p.cache, p.sinks, HEAD_DIM**-0.5, out=p.out)


def triton(p: Problem) -> Callable[[], None]:
    unified_attention, mode = vllm_triton.unified_attention(p.vllm)
    heads, most, segments = KV_HEADS * GROUP, 128 // KV_HEADS, 16  # as the TRITON_ATTN backend sets them
    table = p.indices.view(p.batch, p.pages)
    lengths = torch.full((p.batch,), p.context, dtype=torch.int32, device="cuda")
    starts = torch.arange(p.batch + 1, dtype=torch.int32, device="cuda")
    segment_out = torch.empty(most, heads, segments, HEAD_DIM, device="cuda")
    segment_max, segment_sum = (torch.empty(most, heads, segments, device="cuda") for _ in range(2))
    scale = torch.ones(p.batch, KV_HEADS, device="cuda")
    sinks = p.sinks.to(BF16)

    k, v = p.cache

    def step() -> None:
        unified_attention(
            q=p.q, k=k, v=v, out=p.out, cu_seqlens_q=starts, max_seqlen_q=1, seqused_k=lengths,
            max_seqlen_k=p.context, softmax_scale=HEAD_DIM**-0.5, causal=True,
            window_size=(p.window, 0) if p.window >= 0 else (-1, -1), block_table=table, softcap=0,
            q_descale=None, k_descale=scale, v_descale=scale, seq_threshold_3D=most,
            num_par_softmax_segments=segments, softmax_segm_output=segment_out, softmax_segm_max=segment_max,
            softmax_segm_expsum=segment_sum, sinks=sinks,
            kv_quant_mode=mode.FP8_PER_TENSOR if p.kv_dtype == FP8 else mode.NONE,
        )  # fmt: skip

    return step


VARIANTS = {"decode": decode, "prefill": prefill, "triton": triton}


def numbers_of(options: argparse.Namespace, kv: str, window: int) -> dict:
    """Every variant over contexts and batches, in this process."""
    import flashinfer
    from flashinfer.jit import env as jit_env

    clock, rows, reasons, bandwidth = Clock(), [], {}, read_bandwidth()
    for context in options.context:
        for batch in options.batch:
            p = Problem(batch, context, FP8 if kv == "fp8" else BF16, window, options.vllm)
            for name in options.only.split(","):
                try:
                    samples = clock.microseconds(VARIANTS[name](p), options.samples)
                except Exception as problem:  # a variant that cannot run here is a row that says so
                    reasons.setdefault(name, f"{type(problem).__name__}: {problem}"[:300])
                    torch.cuda.synchronize()
                    continue
                median = statistics.median(samples)
                rows.append({
                    "variant": name, "kv": kv, "window": window, "batch": batch, "context": context, "bytes": p.bytes,
                    "median_us": round(median, 3), "share": round(p.bytes / (median * 1e-6) / bandwidth, 4),
                    "samples_us": [round(sample, 3) for sample in samples],
                })  # fmt: skip
            del p
            torch.cuda.empty_cache()
    return {
        "flashinfer": flashinfer.__version__, "tree": getattr(jit_env, "FLASHINFER_TREE_ID", ""),
        "read_bandwidth": bandwidth, "rows": rows, "not_run": reasons,
    }  # fmt: skip


def process(options: argparse.Namespace, kv: str, window: int, package: Path | None) -> dict:
    """`numbers_of` in a process of its own; `package` is the pin's, None the patched one that is imported here."""
    words = [sys.executable, __file__, "--inside", f"{kv},{window}", "--samples", str(options.samples)]
    words += ["--only", "prefill" if package else options.only]
    for name in ("batch", "context"):
        words += [f"--{name}", ",".join(map(str, getattr(options, name)))]
    words += ["--vllm", str(options.vllm)] if options.vllm else []
    environment = dict(os.environ)
    if package:
        base = Path(environment.get("FLASHINFER_WORKSPACE_BASE", Path.home()))
        environment |= {
            "PYTHONPATH": os.pathsep.join([str(package), environment.get("PYTHONPATH", "")]),
            "FLASHINFER_WORKSPACE_BASE": str(base / f"pin-{kv}"),
        }
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def table(rows: list[dict]) -> None:
    """One line for each problem, the variants beside each other."""
    names = list(dict.fromkeys(row["variant"] for row in rows))
    heads = "".join(f"{name + ' us':>16}{'share':>7}" for name in names)
    print(f"{'kv':5}{'window':>7}{'context':>8}{'batch':>6}{heads}")
    problems: dict[tuple, dict] = {}
    for row in rows:
        problems.setdefault((row["kv"], row["window"], row["context"], row["batch"]), {})[row["variant"]] = row
    for (kv, window, context, batch), found in problems.items():
        cells = [found.get(name) for name in names]
        texts = [f"{row['median_us']:16.1f}{row['share']:7.1%}" if row else f"{'-':>23}" for row in cells]
        print(f"{kv:5}{window:7}{context:8}{batch:6}" + "".join(texts), flush=True)


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
    parser.add_argument("--pin", type=Path, help="folder with the unpatched `flashinfer` package")
    parser.add_argument("--vllm", type=Path, help="folder with vLLM's sources, where it is not installed")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        kv, window = options.inside.split(",")
        print(json.dumps(numbers_of(options, kv, int(window))))
        tell()
        return 0
    run = Run(__file__)

    result: dict = {
        "benchmark": "sinks", "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        "cuda": torch.version.cuda, "flashinfer": "", "tree": "", "pin": None, "read_bandwidth": [], "rows": [], "not_run": {},
        "caches": "cold: four times the L2 cache is read before each replay",
    }  # fmt: skip
    for kv in options.kv.split(","):
        for window in options.window:
            here = process(options, kv, window, None)
            parts = [here]
            if options.pin:
                beside = process(options, kv, window, options.pin.resolve())
                result["pin"] = {"flashinfer": beside["flashinfer"], "tree": beside["tree"] or "unpatched"}
                for row in beside["rows"]:
                    row["variant"] = "pin " + row["variant"]
                beside["not_run"] = {"pin " + name: why for name, why in beside["not_run"].items()}
                parts.append(beside)
            result["flashinfer"], result["tree"] = here["flashinfer"], here["tree"]
            for part in parts:
                result["read_bandwidth"].append(part["read_bandwidth"])
                result["rows"] += part["rows"]
                result["not_run"] |= part["not_run"]
            if options.json:  # as it goes: a run that is cut short keeps what it measured
                run.write(options.json, result)
    run.compiled(Path(os.environ.get("FLASHINFER_WORKSPACE_BASE", Path.home())) / ".cache/flashinfer")
    if options.json:
        run.write(options.json, result)
    reads = [rate / 1e9 for rate in result["read_bandwidth"]]
    print(f"{result['device']}: plain read {min(reads):.0f} to {max(reads):.0f} GB/s")
    table(result["rows"])
    for name, reason in result["not_run"].items():
        print(f"{name} did not run everywhere: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
