"""Check the dense kernels on the CUDA device of this machine.

    python kernels/bench/check_gpu.py --package FOLDER --json result.json

FOLDER is what `invoke kernels.build` made for this machine's architecture; without it the kernels are compiled here,
with the nvcc on PATH. Needs torch, NumPy and apache-tvm-ffi. Exit status 0 when everything is right, else 1.
`--sanitize` runs memcheck and racecheck of compute-sanitizer on the quick checks and records what they say.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import loading
import torch
import verdict
from correct import Tally, cases, chained, check, planted, same_alone_and_together, strips
from topk import check as check_topk
from weights import LAYOUTS

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from sparkforge.results.provenance import Run  # noqa: E402  the path comes first


def main() -> int:
    """Run what the words ask for."""
    run = Run(__file__)
    words = _parse()
    seed = words.seed if words.seed is not None else int.from_bytes(os.urandom(6), "little")
    print(f"seed {seed}")
    generator = torch.Generator().manual_seed(seed)
    kernels = loading.package(words.package)
    begun = time.monotonic()
    result: dict[str, Any] = loading.facts(kernels) | {"seed": seed}
    wrong, result["checks"] = _checks(kernels, generator, quick=words.quick)
    if not words.quick:
        wrong += _on_device(kernels, generator, result["checks"])
    if words.sanitize:
        _sanitize(words, result["checks"])
    result |= {"seconds": time.monotonic() - begun, "wrong": wrong}
    run.read(loading.sources())
    if words.json:
        run.write(words.json, result)
    found = wrong if words.quick else verdict.failures(result)  # a quick run leaves out what a result must hold
    print("\n".join(found) or "all right")
    return 1 if found else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--package", type=Path, help="folder that holds sparkforge_kernels/")
    parser.add_argument("--json", type=Path, help="write everything here")
    parser.add_argument("--seed", type=int, help="repeat a run; else a fresh one")
    parser.add_argument("--quick", action="store_true", help="small shapes alone")
    parser.add_argument("--sanitize", action="store_true", help="run memcheck and racecheck too")
    return parser.parse_args()


def _checks(kernels: Any, generator: torch.Generator, *, quick: bool) -> tuple[list[str], dict[str, Any]]:
    tally, wrong = Tally(), []
    for number, case in enumerate(cases(generator, "cuda", quick=quick)):
        if quick and number % 23:
            continue
        for layout in LAYOUTS:
            wrong += check(case, kernels, layout, tally)
    seen: dict[str, Any] = dict(vars(tally))
    looks = {"planted faults": planted, "tokens beside, 100 runs": same_alone_and_together, "chain with PDL": chained}
    for name, look in {**({} if quick else looks), "strips": strips}.items():
        found = look(generator, kernels)
        seen[name] = found or "right"
        wrong += found
    if not quick:
        found, seen["top-k tokens"] = check_topk(generator, kernels)
        wrong += found
    print(f"{tally.calls} calls, {tally.outputs} outputs: worst {tally.worst:.3f} of its bound; {len(wrong)} findings")
    return wrong, seen


def _on_device(kernels: Any, generator: torch.Generator, seen: dict[str, Any]) -> list[str]:
    from device import CHECKS  # noqa: PLC0415  needs CUDA

    wrong: list[str] = []
    for name, look in CHECKS.items():
        found = look(generator, kernels.mxfp4_linear_decode)
        seen[name] = found or "right"
        print(f"{name}: {'; '.join(found) or 'right'}")
        wrong += [f"{name}: {says}" for says in found]
    return wrong


def _sanitize(words: argparse.Namespace, seen: dict[str, Any]) -> None:
    package = ["--package", str(words.package)] if words.package else []
    for tool in ("memcheck", "racecheck"):
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--kernel-name", "kns=decode"]
        command += [sys.executable, __file__, "--quick", "--seed", "7", *package]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=150)
        told = [line.strip("= ") for line in done.stdout.splitlines() if "SUMMARY" in line]
        seen[tool] = (
            "right" if done.returncode == 0 and told else f"{done.returncode}: {done.stdout[-1500:]}{done.stderr}"
        )
        seen[f"{tool} says"] = told
        print(f"{tool}: {done.returncode} {told}")


if __name__ == "__main__":
    sys.exit(main())
