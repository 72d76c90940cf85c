"""Numbers of attention with sinks on a GPU (sm_80 or later), against float32 from the definition.

    PYTHONPATH=<patched package> python check_sinks.py [--json result.json] [--quick]

Compiles four modules (BF16 and FP8 cache, with and without window) and runs, in one process: decode over page
sizes, layouts, batch sizes and lengths around the edges of tiles and chunks; chosen and forbidden splits of
the KV; CUDA graphs replayed with changed lengths; the prefill wrapper. Exit status 1 if an error is too large,
or if leaving the sinks out of the reference is not seen.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).parent))

import sink_cases as cases
from verdicts import LARGEST, LSE, RMS, sinks

from sparkforge.results.provenance import Run

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
# Tiles are 16 to 128 keys, the smallest chunk of a split 128 keys, the window 128 keys.
EDGES = [1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 130, 143, 144, 145, 255, 256, 257, 511, 513]
LONG = [1023, 1025, 2047, 4097, 8191, 20000]


class Table:
    """Results by group: how many cases, the worst errors, what failed."""

    def __init__(self) -> None:
        self.groups: dict[str, dict] = {}
        self.failures: list[str] = []

    def add(self, group: str, what: str, got: torch.Tensor, case: cases.Case, lse: torch.Tensor | None = None) -> None:
        want, want_lse = cases.reference(case)
        rms, largest = map(max, zip(*cases.error(case, got, want), strict=True))
        row = self.groups.setdefault(
            group, {"cases": 0, "not finite": 0, "rms": 0.0, "largest": 0.0, "lse": 0.0, "blind": 1e9}
        )
        row["cases"] += 1
        row["not finite"] += not torch.isfinite(got).all()  # a maximum does not see NaN
        row["rms"], row["largest"] = max(row["rms"], rms), max(row["largest"], largest)
        if not (torch.isfinite(got).all() and rms <= RMS and largest <= LARGEST):
            self.failures.append(f"{group}: {what}: rms {rms:.2e}, largest {largest:.2e}")
        # What the same output scores where the reference has no sinks: the check must be able to fail.
        blind = min(rms for rms, _ in cases.error(case, got, cases.reference(case, with_sinks=False)[0]))
        row["blind"] = min(row["blind"], blind)
        if blind <= 3 * RMS:
            self.failures.append(f"{group}: {what}: sinks change too little to be seen ({blind:.2e})")
        if lse is not None:
            off = float((lse - want_lse).abs().max())
            row["lse"] = max(row["lse"], off)
            if not off <= LSE:
                self.failures.append(f"{group}: {what}: logsumexp off by {off:.2e}")

    def show(self) -> None:
        print(f"{'group':44} {'cases':>5} {'rms':>9} {'largest':>9} {'lse':>9} {'no sinks':>9}")
        for name, row in self.groups.items():
            print(
                f"{name:44} {row['cases']:5} {row['rms']:9.2e} {row['largest']:9.2e} "
                f"{row['lse']:9.2e} {row['blind']:9.2e}"
            )


class Decode:
    """The decode wrapper with sinks, and one workspace for all."""

    def __init__(self, device: str) -> None:
        self.workspace = torch.zeros(256 << 20, dtype=torch.uint8, device=device)

    def wrapper(self, layout: str, **kwargs):
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper

        return BatchDecodeWithPagedKVCacheWrapper(self.workspace, layout, use_sinks=True, **kwargs)

    def run(self, case: cases.Case, **plan) -> tuple[torch.Tensor, torch.Tensor, bool]:
        wrapper = self.wrapper(case.layout)
        plan_for(wrapper, case, **plan)
        out, lse = attend(wrapper, case, return_lse=True)
        return out, lse, bool(wrapper._plan_info[14])


def plan_for(wrapper, case: cases.Case, **kwargs) -> None:
    heads = case.sinks.numel()
    wrapper.plan(
        case.indptr, case.indices, case.last_page, heads, heads // cases.GROUP, cases.HEAD_DIM, case.page_size,
        window_left=case.window, q_data_type=case.q.dtype, kv_data_type=case.kv_dtype, **kwargs,
    )  # fmt: skip


def attend(wrapper, case: cases.Case, **kwargs):
    scales = {"k_scale": case.k_scale, "v_scale": case.v_scale} if case.kv_dtype == FP8 else {}
    return wrapper.run(case.q, (case.k, case.v), sinks=case.sinks, **scales, **kwargs)


def name_of(kv_dtype: torch.dtype, window: int) -> str:
    return f"{'fp8' if kv_dtype == FP8 else 'bf16'} kv, {'window ' + str(window) if window >= 0 else 'no window'}"


def decode(
    table: Table, engine: Decode, kv_dtype: torch.dtype, window: int, device: str, *, quick: bool, again: bool
) -> None:
    group = f"decode{' again' if again else ''}, {name_of(kv_dtype, window)}"
    seed = 0
    pages = [16] if quick else [1, 16, 32, 64]
    for page_size in pages:
        for layout in ("NHD", "HND"):
            for lengths in [[n] for n in EDGES + LONG] if page_size == 16 else [[1], [129], [4097]]:
                seed += 1
                case = cases.make(
                    lengths,
                    page_size=page_size,
                    layout=layout,
                    window=window,
                    kv_dtype=kv_dtype,
                    seed=seed,
                    device=device,
                )
                out, lse, _ = engine.run(case)
                table.add(group, f"1 x {lengths[0]}, page {page_size}, {layout}", out, case, lse)
    everything = EDGES + LONG
    for batch in (2, 4, 7, 16, 33, 64):
        for page_size in (16, 64):
            seed += 1
            lengths = [everything[(seed + 5 * i) % len(everything)] for i in range(batch)]
            case = cases.make(lengths, page_size=page_size, window=window, kv_dtype=kv_dtype, seed=seed, device=device)
            out, lse, _ = engine.run(case)
            table.add(group, f"batch {batch}, page {page_size}", out, case, lse)


def splits(table: Table, engine: Decode, kv_dtype: torch.dtype, window: int, device: str) -> None:
    group = f"split KV, {name_of(kv_dtype, window)}"
    seen = set()
    for seed, lengths in enumerate(([20000], [4097, 1], [8191, 129, 2047, 16])):
        case = cases.make(lengths, page_size=16, window=window, kv_dtype=kv_dtype, seed=100 + seed, device=device)
        for plan in ({"disable_split_kv": True}, {}, {"fixed_split_size": 8}, {"fixed_split_size": 3}):
            out, lse, split = engine.run(case, **plan)
            seen.add(split)
            table.add(group, f"{lengths}, {plan}, split {split}", out, case, lse)
    if seen != {False, True}:
        table.failures.append(f"{group}: the plans did not both split and not split ({seen})")


def graphs(table: Table, engine: Decode, kv_dtype: torch.dtype, window: int, device: str) -> None:
    """One capture, then replays after plans for other lengths; by plan and by fast_decode_plan in turn."""
    from flashinfer import fast_decode_plan

    group = f"graph replay, {name_of(kv_dtype, window)}"
    batch, page_size, most = 4, 16, 8192
    sets = [
        [8000] * 4,
        [1, 1, 1, 1],
        [129, 1, 4097, 64],
        [17, 2047, 128, 127],
        [5000, 3, 3, 8192],
        [130, 131, 132, 133],
    ]
    big = [
        cases.make(lengths, page_size=page_size, window=window, kv_dtype=kv_dtype, seed=200 + i, device=device)
        for i, lengths in enumerate(sets)
    ]
    cache = max(case.k.shape[0] for case in big)
    fixed = {
        "k": torch.zeros((cache, *big[0].k.shape[1:]), dtype=kv_dtype, device=device),
        "v": torch.zeros((cache, *big[0].v.shape[1:]), dtype=kv_dtype, device=device),
        "q": torch.zeros_like(big[0].q),
        "sinks": torch.zeros_like(big[0].sinks),
    }
    wrapper = engine.wrapper(
        "NHD",
        use_cuda_graph=True,
        paged_kv_indptr_buffer=torch.zeros(batch + 1, dtype=torch.int32, device=device),
        paged_kv_indices_buffer=torch.zeros(batch * most // page_size + 8, dtype=torch.int32, device=device),
        paged_kv_last_page_len_buffer=torch.zeros(batch, dtype=torch.int32, device=device),
    )
    out = torch.zeros_like(big[0].q)
    scales = {"k_scale": big[0].k_scale, "v_scale": big[0].v_scale} if kv_dtype == FP8 else {}
    graph = None
    for turn, case in enumerate(big * 2):
        fixed["k"].zero_(), fixed["v"].zero_()
        fixed["k"][: case.k.shape[0]].view(torch.uint8).copy_(case.k.view(torch.uint8))
        fixed["v"][: case.v.shape[0]].view(torch.uint8).copy_(case.v.view(torch.uint8))
        fixed["q"].copy_(case.q)
        fixed["sinks"].copy_(case.sinks)
        if turn % 2 and graph is not None:
            wrapper._paged_kv_indptr_buf.copy_(case.indptr)
            wrapper._paged_kv_indices_buf[: case.indices.numel()].copy_(case.indices)
            wrapper._paged_kv_last_page_len_buf.copy_(case.last_page)
            heads = case.sinks.numel()
            fast_decode_plan(
                wrapper, case.indptr, case.indices, case.last_page, heads, heads // cases.GROUP, cases.HEAD_DIM, page_size,
                window_left=window, q_data_type=case.q.dtype, kv_data_type=kv_dtype,
            )  # fmt: skip
        else:
            plan_for(wrapper, case)

        def attention(case: cases.Case = case) -> None:
            wrapper.run(fixed["q"], (fixed["k"], fixed["v"]), sinks=fixed["sinks"], out=out, **scales)

        if graph is None:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                attention()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                attention()
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        table.add(group, f"replay {turn}: {case.lengths}", out, case)


def prefill(table: Table, engine: Decode, kv_dtype: torch.dtype, window: int, device: str) -> None:
    from flashinfer import BatchAttentionWithAttentionSinkWrapper

    group = f"prefill, {name_of(kv_dtype, window)}"
    for seed, (lengths, new) in enumerate(
        (
            ([5], [5]),
            ([128, 300], [128, 1]),
            ([2049, 700, 64], [77, 512, 64]),
            ([9000], [33]),
            ([40, 41, 42], [1, 2, 3]),
        )
    ):
        case = cases.make(
            lengths, qo_lengths=new, page_size=16, window=window, kv_dtype=kv_dtype, seed=300 + seed, device=device
        )
        heads = case.sinks.numel()
        wrapper = BatchAttentionWithAttentionSinkWrapper(
            engine.workspace, backend="fa2", q_data_type=case.q.dtype, kv_data_type=kv_dtype,
            head_dim_qk=cases.HEAD_DIM, head_dim_vo=cases.HEAD_DIM, window_left=window,
        )  # fmt: skip
        wrapper.plan(
            case.qo_indptr, case.indptr, case.indices, case.last_page, heads, heads // cases.GROUP, cases.HEAD_DIM,
            case.page_size, causal=True, window_left=window, q_data_type=case.q.dtype, kv_data_type=kv_dtype,
        )  # fmt: skip
        table.add(group, f"{new} new of {lengths}", attend(wrapper, case), case)


def build(device: str) -> float:
    """Compiles the four modules together; seconds."""
    from flashinfer.jit import build_jit_specs
    from flashinfer.jit.attention import gen_batch_prefill_attention_sink_module

    start = time.monotonic()
    build_jit_specs(
        [
            gen_batch_prefill_attention_sink_module("fa2", BF16, kv_dtype, BF16, torch.int32, 64, 64, 0, swa)
            for kv_dtype in (BF16, FP8)
            for swa in (False, True)
        ]
    )
    return time.monotonic() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="one page size")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()

    run = Run(__file__)
    import flashinfer
    from flashinfer.jit import env as jit_env

    compile_seconds = build(options.device)
    print(f"compiled in {compile_seconds:.0f} s")
    table, engine, start = Table(), Decode(options.device), time.monotonic()
    # BF16 first and again last: in one process each cache must meet the code of its own type.
    for kv_dtype in (BF16, FP8, BF16):
        again = kv_dtype == BF16 and any("fp8" in name for name in table.groups)
        for window in (-1, 127):
            decode(table, engine, kv_dtype, window, options.device, quick=options.quick or again, again=again)
            if not again:
                splits(table, engine, kv_dtype, window, options.device)
                graphs(table, engine, kv_dtype, window, options.device)
                prefill(table, engine, kv_dtype, window, options.device)
    seconds = time.monotonic() - start
    table.show()
    cuda = options.device == "cuda"
    result = {
        "check": "sinks",
        "device": torch.cuda.get_device_name() if cuda else options.device,
        "capability": list(torch.cuda.get_device_capability()) if cuda else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "flashinfer": flashinfer.__version__,
        "tree": getattr(jit_env, "FLASHINFER_TREE_ID", ""),
        "cases": sum(row["cases"] for row in table.groups.values()),
        "cases that repeat inputs": sum(row["cases"] for name, row in table.groups.items() if " again" in name),
        "compile_seconds": round(compile_seconds, 1),
        "seconds": round(seconds, 1),
        "groups": table.groups,
        "failures": table.failures,
    }
    run.compiled(Path(jit_env.FLASHINFER_WORKSPACE_DIR))
    if options.json:
        run.write(options.json, result)
    failures = sinks(result)
    for failure in failures:
        print(f"FAILED {failure}")
    print(f"{result['cases']} cases, {len(failures)} failures, {seconds:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
