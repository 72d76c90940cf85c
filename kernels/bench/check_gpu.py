"""Check and time mxfp4_linear_decode on the CUDA device of this machine.

    python kernels/bench/check_gpu.py --package FOLDER --json result.json

FOLDER is what `invoke kernels.build` made for this machine's architecture; without it the kernels are compiled here,
with the nvcc on PATH. Needs torch, NumPy, apache-tvm-ffi and g++. Exit status 0 when everything is right, else 1.
`--twin` puts the CPU twin in the kernel's place and needs no device: it checks this script.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import loading
import numpy as np
import torch
import verdict
from correct import Tally, bits, cases, check, same_alone_and_together

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from sparkforge.results.provenance import Run  # noqa: E402  the path comes first

_FIRST_CALL = """
import sys; sys.path[:0] = {path!r}
import torch, sparkforge_kernels as kernels
x = torch.ones(1, 32, device="cuda").bfloat16()
w = torch.full((8, 16), 0x22, dtype=torch.uint8, device="cuda")
scale = torch.full((8, 1), 127, dtype=torch.uint8, device="cuda")
out = torch.zeros(1, 8, device="cuda").bfloat16()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    kernels.mxfp4_linear_decode(x, w, scale, None, out)
graph.replay()
torch.cuda.synchronize()
assert (out == 32).all(), out
"""


def main() -> int:
    """Run what the words ask for."""
    run = Run(__file__)
    words = _parse()
    seed = words.seed if words.seed is not None else int.from_bytes(os.urandom(6), "little")
    print(f"seed {seed}")
    generator = torch.Generator().manual_seed(seed)
    twin = loading.twin()
    begun = time.monotonic()
    result: dict[str, Any] = {
        "seed": seed,
        "command": sys.argv,
        "begun": dt.datetime.now(dt.UTC).isoformat(),
    }
    if words.twin:
        kernel, device, package = _twin_as_kernel(), "cpu", None
    else:
        major, minor = torch.cuda.get_device_capability()
        suffix = "a" if major in (9, 12) else ""
        package = loading.package(words.package, f"{major}{minor}{suffix}")
        kernel, device = package.mxfp4_linear_decode, "cuda"
        if not package.supports((major, minor)):
            sys.exit(f"the library holds code for {package.archs()}, this device is {major}.{minor}")
        result |= _machine(package)
    wrong, result["checks"] = _checks(kernel, device, generator, twin, quick=words.quick)
    if package is not None:
        wrong += _on_device(kernel, generator, result["checks"])
        if not words.no_timing:
            result |= _timings(kernel)
    result |= {"seconds": time.monotonic() - begun, "wrong": wrong}
    # The library says which sources it was made from by their hash alone: these are what lies here.
    run.read([path for folder in ("csrc", "include/sparkforge") for path in (ROOT / "kernels" / folder).iterdir()])
    if words.json:
        run.write(words.json, result)
    found = verdict.failures(result)
    print("\n".join(found) or "all right")
    return 1 if found else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--package", type=Path, help="folder that holds sparkforge_kernels/")
    parser.add_argument("--json", type=Path, help="write everything here, every sample included")
    parser.add_argument("--seed", type=int, help="repeat a run; else a fresh one")
    parser.add_argument("--quick", action="store_true", help="leave out the lm_head")
    parser.add_argument("--no-timing", action="store_true")
    parser.add_argument("--twin", action="store_true", help="check this script on a CPU")
    return parser.parse_args()


def _checks(
    kernel: Callable[..., Any], device: str, generator: torch.Generator, twin: Callable[..., None], *, quick: bool
) -> tuple[list[str], dict[str, Any]]:
    tally, wrong = Tally(), []
    for case, ask_twin in cases(generator, device, quick=quick):
        wrong += check(case, kernel, tally, twin if ask_twin else None)
    wrong += same_alone_and_together(generator, device, kernel)
    print(
        f"{tally.calls} calls, {tally.outputs} outputs: worst error {tally.worst:.3f} of its bound; "
        f"{tally.bitwise} compared bit by bit with the CPU twin; {len(wrong)} findings"
    )
    return wrong, dict(vars(tally))


def _on_device(kernel: Callable[..., Any], generator: torch.Generator, seen: dict[str, Any]) -> list[str]:
    from device import CHECKS  # noqa: PLC0415  needs CUDA

    wrong: list[str] = []
    for name, look in CHECKS.items():
        found = look(generator, kernel)
        seen[name] = found or "right"
        print(f"{name}: {'; '.join(found) or 'right'}")
        wrong += [f"{name}: {says}" for says in found]
    seen["first call inside a capture"] = first = _first_call_in_capture()
    print(f"first call inside a capture: {first.splitlines()[-1]}")
    return wrong + (["first call inside a capture gives a wrong result"] if "AssertionError" in first else [])


def _first_call_in_capture() -> str:
    """What happens where the library is loaded during a capture; it may be refused, as its docstring warns."""
    program = _FIRST_CALL.format(path=sys.path)
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    return "right" if done.returncode == 0 else done.stderr.strip()[-2000:]


def _timings(kernel: Callable[..., Any]) -> dict[str, Any]:
    import timing  # noqa: PLC0415  needs CUDA

    copy, timed = timing.copy_bandwidth(), timing.time_all(kernel)
    print(timing.table(timed, copy))
    return {"copy": copy.as_json(), "timed": [one.as_json() for one in timed], "clocks_after": _clocks()}


def _twin_as_kernel() -> Callable[..., Any]:
    call = loading.twin(["-O1"])

    def kernel(x: Any, w: Any, scale: Any, bias: Any, out: Any) -> Any:
        y = np.empty(tuple(out.shape), np.uint16)
        call(bits(x), bits(w), bits(scale), None if bias is None else bits(bias), y)
        out.view(torch.int16).copy_(torch.from_numpy(y.view(np.int16)))
        return out

    return kernel


def _machine(package: Any) -> dict[str, Any]:
    import tvm_ffi  # noqa: PLC0415  the twin needs none

    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "capability": [properties.major, properties.minor],
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "tvm_ffi": tvm_ffi.__version__,
        "library": package.build_facts(),
        "clocks_before": _clocks(),
    }


def _clocks() -> str:
    query = "driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
