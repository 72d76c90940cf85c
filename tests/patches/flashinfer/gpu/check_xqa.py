"""XQA decode with sinks where several CTAs share a sequence, run many times against float32 from the definition.

    PYTHONPATH=<patched package> python check_xqa.py [--json result.json] [--runs 200]

On sm_90 with a BF16 cache this is the same mha.cu as on SM12x, without the fences of sm_121. The race that it looks
for, a CTA that stores its part over the merged output, shows as an output that changes from run to run; the
unpatched kernel can be put beside it. Exit status 1 if an error is too large or a run differs from the first.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

import sink_cases as cases

RMS, LARGEST = 1.0e-2, 3.0e-2
PAGE = 16


def run(case: cases.Case, buffers: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    from flashinfer.xqa import xqa

    batch, heads = len(case.lengths), case.sinks.numel()
    most = max(-(-length // PAGE) for length in case.lengths)
    table = torch.zeros(batch, most, dtype=torch.int32, device="cuda")
    bounds = case.indptr.tolist()
    for request in range(batch):
        pages = case.indices[bounds[request] : bounds[request + 1]]
        table[request, : pages.numel()] = pages
    out = torch.full((batch, 1, heads, cases.HEAD_DIM), float("nan"), dtype=case.q.dtype, device="cuda")
    workspace, semaphores = buffers
    xqa(
        case.q.view(batch, 1, heads, cases.HEAD_DIM), case.k, case.v, table,
        torch.tensor(case.lengths, dtype=torch.uint32, device="cuda").view(batch, 1), out, workspace, semaphores,
        heads // cases.GROUP, PAGE, sinks=case.sinks.view(-1, cases.GROUP),
        sliding_win_size=case.window + 1 if case.window >= 0 else 0, kv_layout=case.layout,
    )  # fmt: skip
    return out.view(batch, heads, cases.HEAD_DIM)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import flashinfer
    from flashinfer.jit import env as jit_env

    buffers = (
        torch.zeros(256 << 20, dtype=torch.uint8, device="cuda"),
        torch.zeros(1 << 16, dtype=torch.uint32, device="cuda"),
    )
    failures, rows = [], []
    print(f"{'window':>6} {'batch':>5} {'longest':>8} {'rms':>9} {'largest':>9} {'runs that differ':>17}")
    for window in (-1, 127):
        for seed, lengths in enumerate(([1], [129], [4097], [20000], [1, 130, 4097, 8191], [257] * 16, [2048, 1] * 8)):
            case = cases.make(lengths, page_size=PAGE, window=window, seed=400 + seed)
            first = run(case, buffers)
            rms, largest = map(max, zip(*cases.error(case, first, cases.reference(case)[0]), strict=True))
            differ = sum(not torch.equal(first, run(case, buffers)) for _ in range(options.runs))
            print(f"{window:6} {len(lengths):5} {max(lengths):8} {rms:9.2e} {largest:9.2e} {differ:17}")
            rows.append({"window": window, "lengths": lengths, "rms": rms, "largest": largest, "differ": differ})
            if differ or not (rms <= RMS and largest <= LARGEST):
                failures.append(f"window {window}, {lengths}: rms {rms:.2e}, {differ} of {options.runs} runs differ")
    for failure in failures:
        print(f"FAILED {failure}")
    if options.json:
        options.json.write_text(
            json.dumps(
                {
                    "check": "xqa", "ok": not failures, "device": torch.cuda.get_device_name(),
                    "capability": list(torch.cuda.get_device_capability()), "torch": torch.__version__,
                    "cuda": torch.version.cuda, "flashinfer": flashinfer.__version__,
                    "tree": getattr(jit_env, "FLASHINFER_TREE_ID", ""), "runs": options.runs, "rows": rows,
                    "failures": failures,
                }
            )
            + "\n"
        )  # fmt: skip
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
