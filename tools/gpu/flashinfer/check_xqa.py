"""XQA decode with sinks where several CTAs share a sequence: run many times, and with the race of F-11 provoked.

    PYTHONPATH=<patched package> python check_xqa.py [--json result.json] [--pin <pin's package>] [--runs 1000]

On sm_90 with a BF16 cache this is the same mha.cu as on SM12x, without the fences of sm_121. What sm_90 has besides is
for an FP8 cache, and not compiled here. --build compiles and runs nothing. The race: every CTA of a sequence stores its
output tile, and one that is slow stores its part over the result that the last one merged.
Each case runs against float32 from the definition, then `--runs` times beside memory traffic on another stream, and
must not change by a bit: the parts are merged in a fixed order. Then the same with a test-only build of mha.cu in which
every CTA but the last waits for some 0.2 ms before that store: the pin must be wrong there, in every case in which CTAs
share a sequence, or this check sees nothing; the patched kernel must be right. Exit status 1 if any of that is not so.
Whether the pin shows the race without the wait is recorded, not judged. The result is written anew after every case,
as a failure until all are there.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).parent))

import sink_cases as cases
from verdicts import XQA_LENGTHS as LENGTHS
from verdicts import xqa as judged

from sparkforge.results.provenance import Run, tell

PAGE = 16
ANCHOR = "      bool const isLastCta = mbsmem.isLastCta;\n"
WAIT = "      if (!isLastCta) {\n        __nanosleep(100000);\n        __nanosleep(100000);\n      }\n"


def module(window: int, *, delayed: bool):
    """JitSpec of the BF16 module, with the wait planted where `delayed`."""
    from flashinfer.jit import env as jit_env
    from flashinfer.jit.xqa import gen_xqa_module

    bf16 = torch.bfloat16
    spec = gen_xqa_module(bf16, bf16, PAGE, cases.HEAD_DIM, cases.GROUP, window >= 0, bf16)
    of_fp8 = {"mha_sm90.cu", "tensorMap.cpp"}
    spec = dataclasses.replace(
        spec,
        name=spec.name + "_bf16",
        sources=[source for source in spec.sources if source.name not in of_fp8],
        extra_cuda_cflags=[flag.replace("USE_SM90_MHA=1", "USE_SM90_MHA=0") for flag in spec.extra_cuda_cflags],
    )
    if not delayed:
        return spec
    (mha,) = [source for source in spec.sources if source.name == "mha.cu"]
    text = mha.read_text()
    assert text.count(ANCHOR) == 1, f"{mha} has no one place for the wait"
    planted = Path(jit_env.FLASHINFER_WORKSPACE_DIR) / "planted/mha.cu"
    planted.parent.mkdir(parents=True, exist_ok=True)
    text = text.replace(ANCHOR, ANCHOR + WAIT)
    if not planted.exists() or planted.read_text() != text:  # a new date would compile it again
        planted.write_text(text)
    return dataclasses.replace(
        spec,
        name=spec.name + "_delayed",
        sources=[planted if source == mha else source for source in spec.sources],
        extra_include_dirs=[*(spec.extra_include_dirs or []), mha.parent],
    )


def build() -> None:
    from flashinfer.jit import build_jit_specs

    build_jit_specs([module(window, delayed=delayed) for window in (-1, 127) for delayed in (False, True)])


class Kernel:
    """One case's call, over buffers of its own."""

    def __init__(self, case: cases.Case) -> None:
        self.case = case
        self.batch, self.heads = len(case.lengths), case.sinks.numel()
        most = max(-(-length // PAGE) for length in case.lengths)
        self.table = torch.zeros(self.batch, most, dtype=torch.int32, device="cuda")
        bounds = case.indptr.tolist()
        for request in range(self.batch):
            pages = case.indices[bounds[request] : bounds[request + 1]]
            self.table[request, : pages.numel()] = pages
        self.lengths = torch.tensor(case.lengths, dtype=torch.int32, device="cuda").view(torch.uint32).view(-1, 1)
        self.q = case.q.view(self.batch, 1, self.heads, cases.HEAD_DIM)
        self.out = torch.empty_like(self.q)
        self.workspace = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
        self.semaphores = torch.zeros(1 << 16, dtype=torch.int32, device="cuda").view(torch.uint32)
        # As launchMHAFlashInfer chooses: CTAs of a sequence, if its KV has that many tiles.
        processors = torch.cuda.get_device_properties(0).multi_processor_count
        self.shared = max(1, processors // (self.batch * (self.heads // cases.GROUP))) > 1 and most * PAGE > 256

    def __call__(self) -> torch.Tensor:
        from flashinfer.xqa import xqa

        self.out.fill_(float("nan"))
        xqa(
            self.q, self.case.k, self.case.v, self.table, self.lengths, self.out, self.workspace, self.semaphores,
            self.heads // cases.GROUP, PAGE, sinks=self.case.sinks.view(-1, cases.GROUP),
            sliding_win_size=self.case.window + 1 if self.case.window >= 0 else 0, kv_layout=self.case.layout,
        )  # fmt: skip
        return self.out.view(self.batch, self.heads, cases.HEAD_DIM)


def numbers(runs: int) -> Iterator[dict]:
    """What runs here, then every case, as the tree has the kernel and with the wait planted."""
    import flashinfer
    from flashinfer.jit import env as jit_env

    python = importlib.import_module("flashinfer.xqa")  # the package has a function of that name

    traffic = [torch.zeros(1 << 29, dtype=torch.uint8, device="cuda") for _ in range(2)]
    beside = torch.cuda.Stream()
    yield {
        "flashinfer": flashinfer.__version__,
        "tree": getattr(jit_env, "FLASHINFER_TREE_ID", "") or "unpatched",
        "device": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
    }
    for delayed in (False, True):
        python.get_xqa_module.cache_clear()
        python.gen_xqa_module = lambda *args, delayed=delayed, **_: module(127 if args[5] else -1, delayed=delayed)
        repeats = max(1, runs // 20) if delayed else runs
        for window in (-1, 127):
            for seed, lengths in enumerate(LENGTHS):
                start = time.monotonic()
                case = cases.make(lengths, page_size=PAGE, window=window, seed=400 + seed)
                kernel, want = Kernel(case), cases.reference(case)[0]
                first = kernel().clone()
                rms, largest = map(max, zip(*cases.error(case, first, want), strict=True))
                differ = torch.zeros((), dtype=torch.int64, device="cuda")
                worst = torch.zeros((), device="cuda")
                busy = 0
                for number in range(repeats):
                    if beside.query():  # the last copy has ended: another, so that every run begins beside one
                        with torch.cuda.stream(beside):
                            traffic[0].copy_(traffic[1])
                    busy += not beside.query()
                    got = kernel()
                    differ += (got != first).any()
                    if number % 20 == 0:
                        worst = torch.maximum(worst, (got.float() - want).abs().max().nan_to_num(float("inf")))
                torch.cuda.synchronize()
                yield {
                    "delayed": delayed, "window": window, "lengths": lengths, "shared": kernel.shared, "runs": repeats,
                    "beside": busy, "rms": rms, "largest": largest, "differ": int(differ),
                    "worst": float(worst) / float(want.abs().max()), "seconds": round(time.monotonic() - start, 2),
                }  # fmt: skip


def start(words: list[str], package: Path | None) -> subprocess.Popen[str]:
    """This script over another package, with compiled modules of its own."""
    environment = dict(os.environ)
    if package:
        base = Path(environment.get("FLASHINFER_WORKSPACE_BASE", Path.home()))
        environment |= {
            "PYTHONPATH": os.pathsep.join([str(package), environment.get("PYTHONPATH", "")]),
            "FLASHINFER_WORKSPACE_BASE": str(base / "pin-xqa"),
        }
    command = [sys.executable, __file__, "--inside", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def result(found: dict[str, dict]) -> dict:
    natural = [row for row in found.get("pin", {}).get("rows", ()) if not row["delayed"]]
    patched = found["patched"]
    return {
        "check": "xqa", "device": patched.get("device"), "capability": patched.get("capability"),
        "torch": torch.__version__, "cuda": torch.version.cuda, "flashinfer": patched.get("flashinfer"),
        "tree": patched.get("tree", ""),
        "summary": {
            "pin_runs_without_wait": sum(row["runs"] for row in natural),
            "of_them_wrong": sum(row["differ"] for row in natural),
        },
        "runs": found,
    }  # fmt: skip


def line(name: str, row: dict) -> str:
    return (
        f"{name:8} {row['delayed']!s:>5} {row['window']:6} {len(row['lengths']):5} {max(row['lengths']):8} "
        f"{row['shared']!s:>6} {row['rms']:9.2e} {row['worst']:9.2e} {row['differ']:5}/{row['runs']:5} "
        f"{row['seconds']:7}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--pin", type=Path, help="folder with the unpatched `flashinfer` package")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--build", action="store_true", help="compile only")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside and options.build:
        build()
        return 0
    if options.inside:
        for said in numbers(options.runs):
            print(json.dumps(said), flush=True)
        tell()
        return 0
    run = Run(__file__)
    packages = {"patched": None} | ({"pin": options.pin.resolve()} if options.pin else {})
    if options.build:
        building = [start(["--build"], package) for package in packages.values()]
        return max(abs(process.wait()) for process in building)
    found: dict[str, dict] = {}
    print("tree      wait window batch  longest shared       rms     worst      differ seconds")
    for name, package in packages.items():
        found[name] = {"status": None, "rows": []}
        process = start(["--runs", str(options.runs)], package)
        assert process.stdout is not None
        for said in map(json.loads, process.stdout):
            if "lengths" in said:
                found[name]["rows"].append(said)
                print(line(name, said), flush=True)
            else:
                found[name] = said | found[name]
            if options.json:  # as it goes; a run that is cut short lacks cases, and its judge says so
                run.write(options.json, result(found))
        found[name]["status"] = process.wait()
    base = Path(os.environ.get("FLASHINFER_WORKSPACE_BASE", Path.home()))
    run.compiled(base / ".cache/flashinfer")
    whole = result(found)
    failures = judged(whole)
    print(json.dumps(whole["summary"]))
    for failure in failures:
        print(f"FAILED {failure}")
    if options.json:
        run.write(options.json, whole)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
