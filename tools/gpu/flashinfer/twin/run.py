"""The SM12x grouped GEMM of a patched FlashInfer tree, run on a GPU of compute capability 9.0 by its software twin.

    python tools/gpu/flashinfer/twin/run.py --tree SOURCES --json FILE [--build FOLDER] [--jobs N]

Compiles FlashInfer's own launcher for every FP8 x FP4 tile, with and without swap_ab, with and without FINALIZE; runs
each on made-up experts; holds every output to an exact reference; and shows that planted defects are found. What it
does and does not say stands in README.md beside it. Exit status 1 if an output is wrong or a defect is not found.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import compiling
import edits
import judge

from sparkforge.results.provenance import Run

SECONDS = 180  # a kernel that waits for ever must not


def run(failures: list[str], program: Path, *words: str) -> list[dict[str, Any]]:
    """The lines that a program prints; an error of CUDA or a wait is added to `failures`."""
    name = " ".join([program.name, *words])
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired as late:
        failures.append(f"{name}: not done after {SECONDS} s")
        return [json.loads(line) for line in (late.stdout or b"").splitlines()[:-1]]
    if done.returncode:
        failures.append(f"{name}: status {done.returncode}: {done.stderr.strip()[-500:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> int:
    """Build, run, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, required=True, help="patched FlashInfer sources")
    parser.add_argument("--tree-id", default="", help="git tree id of them, where no mark says it")
    parser.add_argument("--build", type=Path, default=Path("build/twin"))
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) - 1), help="5 GiB each")
    parser.add_argument("--gemm-only", action="store_true", help="without the whole op")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    record = Run(__file__)
    tree = options.tree.resolve()
    mark = tree / "flashinfer/sparkforge_tree.txt"
    if not mark.is_file():
        if not options.tree_id:
            parser.error(f"{mark} is not there: say which tree this is, --tree-id ID")
        record.tree(tree, "flashinfer", options.tree_id)
    out = compiling.folder(options.build.resolve())
    kernels = (*compiling.KERNELS, *compiling.DEFECTS)
    made = compiling.objects(tree, out, kernels, options.jobs, op=not options.gemm_only)
    record.read([tree / edit.path for edit in (*edits.TWIN, *edits.PLANTED)])  # copies of these are compiled
    record.compiled(out)

    problems: list[str] = []
    twin = compiling.link(out, made, compiling.KERNELS, "twin")
    device, *lines = run(problems, twin) or [{}]
    planted: dict[str, list[dict[str, Any]]] = {}
    for name in judge.INPUT_DEFECTS:
        planted[name] = run(problems, twin, "--case", "edges", "--plant", name)[1:]
    for kernel in compiling.DEFECTS:
        program = compiling.link(out, made, [kernel], kernel.name)
        planted[f"kernel {kernel.planted}"] = run(problems, program, "--case", "edges")[1:]
    pairs: list[dict[str, Any]] = []
    if not options.gemm_only:
        op = compiling.link(out, made, compiling.KERNELS, "op", compiling.OP)
        pairs = run(problems, op)[1:]
        for name in judge.OP_DEFECTS:
            planted[f"op {name}"] = run(problems, op, "--plant", name)[1:]
    result = {
        "check": "twin", "gemm_only": options.gemm_only, "capability": device.get("capability", ""), "problems": problems,
        "comparisons": lines, "op": pairs, "planted": planted, "tma_starts": run(problems, start_program(out)),
    }  # fmt: skip
    failures = judge.failures(result)

    for line in lines:
        print(
            f"{line['case']:18}{line['tile']:12}{'swap_ab ' if line['swap_ab'] else '        '}{line['fusion']:9}"
            f"{line['wrong']:9} of {line['compared']:9} wrong, error at most {line['worst']:.3f} of the bound"
        )
    for tokens in sorted({line["tokens"] for line in pairs}):
        errors = [line["error"] for line in pairs if line["tokens"] == tokens]
        print(f"op, {tokens} tokens: {len(errors)} pairs of tactics, error {min(errors):.5f} to {max(errors):.5f}")
    for name, found in planted.items():
        print(f"planted {name}: {[line.get('wrong', line['beyond']) for line in found]} wrong")
    for failure in failures:
        print(f"FAILED {failure}")
    if options.json:
        record.write(options.json, result)
    return 1 if failures else 0


def start_program(out: Path) -> Path:
    """The program that tries which starts a copy may have."""
    program = out / "tma_start"
    architecture = next(flag for flag in compiling.FLAGS if flag.startswith("-gencode"))
    subprocess.run(
        [compiling.nvcc(), "-std=c++17", architecture, compiling.HERE / "tma_start.cu", "-o", program], check=True
    )
    return program


if __name__ == "__main__":
    sys.exit(main())
