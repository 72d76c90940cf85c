"""Compiles and runs check_sf_tma.cu: the copy of scale factors by a real TMA unit (sm_90 or later).

    python check_sf_tma.py --tree <patched sources> [--json result.json] [--programs <folder>]

Two programs: with FP4 weights, as on SM12x, whose own descriptors sm_90 refuses and the copies of scale factors do not
use; and with FP8 weights, where every descriptor is accepted. Exit status 1 if a scale factor is wrong or a fault that
was planted is not seen.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).parent))

from verdicts import sf_tma

from sparkforge.results.provenance import Run

FP8 = ["-DWEIGHT=cutlass::mx_float8_t<cutlass::float_e4m3_t>", "-DWEIGHT_ALIGNMENT=16"]


def compile_programs(tree: Path, folder: Path) -> None:
    """`fp4` and `fp8` in `folder`, at the same time."""
    cutlass = tree / "3rdparty/cutlass"
    folder.mkdir(parents=True, exist_ok=True)
    variants = {"fp4": [], "fp8": FP8}
    nvcc = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin/nvcc"
    running = {
        name: subprocess.Popen(
            [
                nvcc, "-std=c++17", "-O2", "-w", "-DNDEBUG", "-gencode=arch=compute_90a,code=sm_90a",
                "--expt-relaxed-constexpr", *flags, f"-I{cutlass / 'include'}", f"-I{cutlass / 'tools/util/include'}",
                Path(__file__).with_suffix(".cu"), "-MD", "-MF", folder / f"{name}.d", "-o", folder / name, "-lcuda",
            ]
        )
        for name, flags in variants.items()
    }  # fmt: skip
    failed = [name for name, process in running.items() if process.wait() != 0]
    if failed:
        message = f"not compiled: {', '.join(failed)}"
        raise SystemExit(message)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--programs", type=Path, default=Path("sf-tma-programs"))
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    run = Run(__file__)
    tree, folder = options.tree.resolve(), options.programs.resolve()
    if not all((folder / name).is_file() for name in ("fp4", "fp8", "fp4.d", "fp8.d")):
        compile_programs(tree, folder)
    run.compiled(folder)
    if options.compile_only:
        return 0
    programs, device = {}, {}
    for name in ("fp4", "fp8"):
        done = subprocess.run([folder / name], capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        device, rows = (lines[0], lines[1:]) if lines else ({}, [])
        programs[name] = {"status": done.returncode, "rows": rows, "said": done.stderr[-2000:]}
        for row in rows:
            what = f"{name} {row['operand']} {row['tile']:12} {row['tiles']:3} tiles, fault {row['fault']:8}"
            print(f"{what} {row['wrong']:6} of {row['compared']} wrong")
        if done.stderr:
            print(f"{name} said: {done.stderr.splitlines()[0][:200]}")
    result = {"check": "sf_tma", **device, "programs": programs}
    failures = sf_tma(result)
    for failure in failures:
        print(f"FAILED {failure}")
    if options.json:
        run.write(options.json, result)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
