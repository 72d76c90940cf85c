"""Whether the modules that were compiled ahead of time are all that vLLM asks FlashInfer for, and work as libraries.

    python aot.py --capability 12.1

Runs in the environment that is asked about. vLLM's own code for gpt-oss is run on a device that is not here
(`aot_device`): attention with sinks, the MXFP4 MoE with its weights and its tuning, the sampler (`aot_routes`).
Whatever module it asks FlashInfer for must be found ahead of time, load, and have every function that is looked up on
it (`aot_record`); nothing is compared with any list of modules. `--parts-out` names parts of profiles whose modules
were left out on purpose; their routes are not run. No compiler can be reached: PATH and CUDA_HOME are empty folders,
FLASHINFER_DISABLE_JIT is set. Exit status: 0 all of it, 1 something is missing or a route does not
run, 2 for words that cannot be read.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

# Where the image has its stub of the driver's library, which only a machine with a GPU has for real.
STUB = Path("/opt/sparkforge/cuda/lib64/stubs/libcuda.so")


def scrub(folder: Path) -> None:
    """Take every compiler away, and every place where an earlier run may have left something."""
    for name in ("CUDACXX", "CC", "CXX", "FLASHINFER_NVCC", "NVCC_PREPEND_FLAGS"):
        os.environ.pop(name, None)
    (folder / "bin").mkdir()
    os.environ |= {
        "PATH": str(folder / "bin"),
        # No toolkit is in it; where these are not set, FlashInfer and torch look in the usual places.
        "CUDA_HOME": str(folder),
        "CUDA_PATH": str(folder),
        "FLASHINFER_DISABLE_JIT": "1",
        "FLASHINFER_WORKSPACE_BASE": str(folder),
        "VLLM_CACHE_ROOT": str(folder / "vllm"),
        # What vLLM is told where there is no compiler, and nothing of FlashInfer's has to be compiled.
        "VLLM_HAS_FLASHINFER_CUBIN": "1",
        "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE": str(1 << 20),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def compiler() -> str:
    """The CUDA compiler that FlashInfer would call; "" for none."""
    from flashinfer.jit import cpp_ext  # noqa: PLC0415  as in `run`

    nvcc = Path(os.environ.get("FLASHINFER_NVCC") or Path(cpp_ext.get_cuda_path(), "bin", "nvcc"))
    return str(nvcc) if nvcc.exists() else shutil.which("nvcc") or ""


def driver(stub: Path) -> str:
    """Load the driver's library, or its stub: modules name it, and the loader then has it already."""
    for name in ("libcuda.so.1", str(stub)):
        try:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return name
    return ""


def leave_out(name: str) -> None:
    """Let FlashInfer look in a folder that has all modules but one: what the check says then shows that it can fail."""
    from flashinfer.jit import env  # noqa: PLC0415  as in `run`

    folder = Path(env.FLASHINFER_AOT_DIR)
    if not (folder / name).is_dir():
        raise SystemExit(f"--without {name}: {folder} has no such module")
    kept = Path(os.environ["FLASHINFER_WORKSPACE_BASE"], "aot")
    kept.mkdir()
    for module in folder.iterdir():
        if module.name != name:
            (kept / module.name).symlink_to(module)
    env.FLASHINFER_AOT_DIR = kept


def run(capability: tuple[int, int], *, parts_out: list[str], without: str, stub: Path) -> dict[str, Any]:
    """Run every route; what was asked for, and what went wrong."""
    import aot_routes  # noqa: PLC0415  torch is imported after the environment is scrubbed

    aot_routes.stand_on_the_cpu()
    import aot_device  # noqa: PLC0415  as above
    import aot_record  # noqa: PLC0415

    aot_routes.pretend(*capability)
    aot_device.pretend(*capability)
    # Not before: torch asks every driver's library that it finds, and a stub of one answers nothing.
    loaded = driver(stub)
    if without:
        leave_out(without)
    recorder = aot_record.Recorder()
    recorder.install()
    ran: list[dict[str, Any]] = []
    for route in aot_routes.routes(parts_out):
        recorder.begin(route.name)
        why = ""
        with aot_routes.switched(route.env):
            try:
                route.run()
            except Exception as failed:  # noqa: BLE001  one route's failure is a result
                why = _said(failed)
        if not why and (short := [name for name in route.ends if name not in recorder.called]):
            why = f"it never came to {', '.join(short)}"
        asked = sorted(name for name, module in recorder.modules.items() if route.name in module.routes)
        ran.append({"route": route.name, "env": route.env, "asked": asked, "failed": why})
    modules = [vars(module) | {"missing": module.missing()} for module in recorder.modules.values()]
    return {"compiler": compiler(), "driver": loaded, "modules": modules, "routes": ran, "imported": imported()}


def imported() -> list[str]:
    """Files of vLLM and FlashInfer that were imported, as site-packages has them."""
    found = set()
    for name in ("vllm", "flashinfer"):
        home = Path(str(sys.modules[name].__file__)).parents[1]
        files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
        found |= {str(Path(file).relative_to(home)) for file in files if file.startswith(f"{home / name}/")}
    return sorted(found)


def problems(found: dict[str, Any]) -> list[str]:
    """Everything that is wrong, a line each."""
    lines = [f"a compiler can be reached: {found['compiler']}"] if found["compiler"] else []
    for module in found["modules"]:
        if module["problem"]:
            lines.append(f"module {module['name']}: {module['problem']} (asked for by: {module['routes'][0]})")
        lines += [f"module {module['name']}: it has no {name}" for name in module["missing"]]
    lines += [f"route {route['route']}: {route['failed']}" for route in found["routes"] if route["failed"]]
    return lines


def _said(failed: BaseException) -> str:
    at = traceback.extract_tb(failed.__traceback__)[-1]
    text = next(iter(str(failed).strip().splitlines()), "")
    return f"{type(failed).__name__}: {text} ({Path(at.filename).name}:{at.lineno})"


def main() -> int:
    """Parse the words, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capability", default="12.1", help="compute capability, such as 12.1")
    parser.add_argument(
        "--parts-out", default="", metavar="PART,...", help="parts of profiles whose modules were left out"
    )
    parser.add_argument("--without", default="", metavar="MODULE", help="as if this module were not there")
    parser.add_argument("--stub", type=Path, default=STUB, help="a stub of libcuda.so")
    parser.add_argument("--out", type=Path, help="write JSON to a file, whatever else is printed")
    words = parser.parse_args()
    try:
        major, minor = (int(part) for part in words.capability.split("."))
    except ValueError:
        print(f"--capability {words.capability}: write it as 12.1", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="sparkforge-aot-") as folder:
        scrub(Path(folder))
        parts_out = [part for part in words.parts_out.split(",") if part]
        ran = run((major, minor), parts_out=parts_out, without=words.without, stub=words.stub)
        found: dict[str, Any] = {"capability": words.capability, **ran}
    found["problems"] = problems(found)
    if words.out:
        words.out.write_text(json.dumps(found, indent=1))
    for module in found["modules"]:
        functions = ", ".join([*module["functions"], *(f".{name}" for name in module["methods"])])
        print(f"{'wrong' if module['problem'] or module['missing'] else 'there'}  {module['name']}: {functions}")
    for line in found["problems"]:
        print(line, file=sys.stderr)
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
