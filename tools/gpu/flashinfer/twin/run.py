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

sys.path.insert(0, str(Path(__file__).resolve().parent))
import build
import judge

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


def facts(tree: Path) -> dict[str, str]:
    """The machine's and the compiler's."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    name, driver = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip().split(", ")
    version = subprocess.run([build.nvcc(), "--version"], capture_output=True, text=True, check=True).stdout
    mark = tree / "flashinfer/sparkforge_tree.txt"
    return {
        "gpu": name,
        "driver": driver,
        "nvcc": version.split(", V")[-1].split()[0],
        "tree": mark.read_text().strip() if mark.is_file() else "",
    }


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
    out = build.folder(options.build.resolve())
    kernels = (*build.KERNELS, *build.DEFECTS)
    made = build.objects(options.tree.resolve(), out, kernels, options.jobs, op=not options.gemm_only)

    failures: list[str] = []
    twin = build.link(out, made, build.KERNELS, "twin")
    device, *lines = run(failures, twin) or [{}]
    failures += judge.judge(lines)
    planted: dict[str, list[dict[str, Any]]] = {}
    for name in judge.INPUT_DEFECTS:
        planted[name] = run(failures, twin, "--case", "edges", "--plant", name)[1:]
        failures += judge.unseen(name, planted[name], len(build.KERNELS), least=1 if name == "output" else 100)
    for kernel in build.DEFECTS:
        name = f"kernel {kernel.planted}"
        planted[name] = run(failures, build.link(out, made, [kernel], kernel.name), "--case", "edges")[1:]
        failures += judge.unseen(name, planted[name], 1)
    pairs: list[dict[str, Any]] = []
    if not options.gemm_only:
        pairs = whole_op(failures, build.link(out, made, build.KERNELS, "op", build.OP), planted)
    start = run(failures, start_program(out))
    failures += judge.starts(start)

    said = facts(options.tree)
    said["tree"] = options.tree_id or said["tree"]
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
    result = {
        "check": "twin", "ok": not failures and not options.gemm_only, "gemm_only": options.gemm_only,
        "capability": device.get("capability", ""), **said, "failures": failures, "comparisons": lines, "op": pairs, "planted": planted, "tma_starts": start,
    }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if failures else 0


def whole_op(failures: list[str], op: Path, planted: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Run the op with every pair of tactics, and with each planted defect."""
    pairs = run(failures, op)[1:]
    failures += judge.pairs(pairs)
    for name in judge.OP_DEFECTS:
        planted[f"op {name}"] = run(failures, op, "--plant", name)[1:]
        failures += judge.unseen_by_op(name, planted[f"op {name}"])
    return pairs


def start_program(out: Path) -> Path:
    """The program that tries which starts a copy may have."""
    program = out / "tma_start"
    architecture = next(flag for flag in build.FLAGS if flag.startswith("-gencode"))
    subprocess.run([build.nvcc(), "-std=c++17", architecture, build.HERE / "tma_start.cu", "-o", program], check=True)
    return program


if __name__ == "__main__":
    sys.exit(main())
