"""Compiles the twin: FlashInfer's launcher for each tile, with the headers edited as `edits` says, for sm_90a.

Objects are kept in a folder that is named by all that they are made from but the tree: that one must have its own.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from edits import overlay

HERE = Path(__file__).resolve().parent
INTERNAL = "csrc/nv_internal"
COMMON = ("envUtils", "logger", "stringUtils", "tllmException")
# What the whole op needs besides.
OP = ("op", "op_gemm", "heuristic", "quant", "memory", "lora")
# What FlashInfer compiles its SM12x MoE module with, but for the architecture.
FLAGS = [
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "-w",
    "-use_fast_math",
    "--expt-relaxed-constexpr",
    "-static-global-template-stub=false",
    "-gencode=arch=compute_90a,code=sm_90a",
    "-DSPARKFORGE_TWIN",
]
DEFINES = [
    "FLASHINFER_ENABLE_F16",
    "FLASHINFER_ENABLE_BF16",
    "FLASHINFER_ENABLE_FP8_E4M3",
    "FLASHINFER_ENABLE_FP8_E5M2",
    "FLASHINFER_ENABLE_FP8_E8M0",
    "FLASHINFER_ENABLE_FP4_E2M1",
    "COMPILE_BLACKWELL_TMA_GEMMS",
    "COMPILE_BLACKWELL_SM120_TMA_GROUPED_GEMMS",
    "ENABLE_BF16",
    "ENABLE_FP8",
    "ENABLE_FP4",
    "USING_OSS_CUTLASS_MOE_GEMM",
    "CUTLASS_ENABLE_GDC_FOR_SM100=1",
]


@dataclass(frozen=True)
class Kernel:
    """One instance; `planted` is the number of a defect in `edits.PLANTED` or in mma.cuh, 0 for none."""

    tile_n: int
    swap_ab: bool
    fusion: str
    planted: int = 0

    @property
    def name(self) -> str:
        """Of its object file."""
        return f"{'p' if self.planted else 'k'}{self.planted or ''}_{self.tile_n}_{str(self.swap_ab).lower()}_{self.fusion}"

    @property
    def defines(self) -> list[str]:
        """Flags of kernel.cu."""
        chosen = {"TILE_N": self.tile_n, "SWAP_AB": str(self.swap_ab).lower(), "FUSION": self.fusion}
        return [f"-D{key}={value}" for key, value in chosen.items()] + [f"-DSPARKFORGE_PLANTED={self.planted}"]


KERNELS = tuple(
    Kernel(tile_n, swap_ab, fusion)
    for tile_n in (128, 64, 32)
    for swap_ab in (True, False)
    for fusion in ("FINALIZE", "NONE")
)
DEFECTS = (
    Kernel(32, True, "NONE", 1),
    Kernel(64, False, "FINALIZE", 2),
    Kernel(64, False, "NONE", 3),
    Kernel(64, True, "NONE", 4),
    Kernel(128, True, "NONE", 5),
    Kernel(32, True, "FINALIZE", 6),
)


def nvcc() -> str:
    """The compiler: of CUDA_HOME, or the one on PATH."""
    home = os.environ.get("CUDA_HOME")
    return str(Path(home) / "bin/nvcc") if home else shutil.which("nvcc") or "nvcc"


def headers() -> list[Path]:
    """Folders with the headers of cuBLAS, cuRAND and NVRTC, where they are Python packages."""
    spec = importlib.util.find_spec("nvidia")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    named = os.environ.get("SPARKFORGE_CUDA_HEADERS")
    found = [Path(place) / "cu13/include" for place in places] + ([Path(named)] if named else [])
    return [folder for folder in found if folder.is_dir()]


def folder(base: Path) -> Path:
    """Where objects of these sources, flags and compiler lie under `base`; made if it is not there."""
    version = subprocess.run([nvcc(), "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(version)
    for path in sorted(path for path in HERE.rglob("*") if path.suffix in {".cu", ".cuh", ".h"}):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    for name in ("build.py", "edits.py"):
        digest.update((HERE / name).read_bytes())
    out = base / digest.hexdigest()[:16]
    out.mkdir(parents=True, exist_ok=True)
    return out


def objects(tree: Path, out: Path, kernels: Iterable[Kernel], jobs: int, *, op: bool) -> dict[str, Path]:
    """Compile what is not in `out` yet; object files by name. `op`: those of the whole op too.

    Raises:
        SystemExit: a source does not compile.
    """
    internal = tree / INTERNAL
    moe = internal / "tensorrt_llm/kernels/cutlass_kernels"
    folders = [
        HERE, HERE / "include", *overlay(tree, out / "overlay"), internal, internal / "include",
        internal / "tensorrt_llm/cutlass_extensions/include", moe / "include", moe, tree / "include", tree / "csrc",
        tree / "3rdparty/cutlass/include", tree / "3rdparty/cutlass/tools/util/include", tree / "3rdparty/spdlog/include",
    ]  # fmt: skip
    base = [nvcc(), *FLAGS, *[f"-D{name}" for name in DEFINES], *[f"-I{path}" for path in folders]]
    for path in headers():
        base += ["-isystem", str(path)]
    own = ("op", "op_gemm", "setup", "driver") if op else ("setup", "driver")
    sources = {name: [str(HERE / f"{name}.cu")] for name in own}
    sources |= {kernel.name: [str(HERE / "kernel.cu"), *kernel.defines] for kernel in kernels}
    sources |= {name: [str(internal / f"cpp/common/{name}.cpp")] for name in COMMON}
    sources["input"] = [str(moe / "moe_gemm/moe_gemm_tma_warp_specialized_input.cu")]
    if op:
        sources["heuristic"] = [str(moe / "cutlass_heuristic.cpp")]
        sources["quant"] = [str(internal / "tensorrt_llm/kernels/preQuantScaleKernel.cu")]
        sources["memory"] = [str(internal / "cpp/common/memoryUtils.cu")]
        sources["lora"] = [str(internal / "tensorrt_llm/kernels/lora/lora.cpp")]

    def compiled(name: str) -> str:
        target = out / f"{name}.o"
        depfile = target.with_suffix(".d")
        if target.is_file() and depfile.is_file():
            return ""
        part = target.with_suffix(".part.o")
        done = subprocess.run(
            [*base, *sources[name], "-MD", "-MF", depfile, "-c", "-o", part],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return f"{name}: {done.stderr[-3000:]}"
        part.rename(target)
        return ""

    with ThreadPoolExecutor(jobs) as pool:
        failed = [message for message in pool.map(compiled, sources) if message]
    if failed:
        message = "not compiled:\n" + "\n".join(failed)
        raise SystemExit(message)
    return {name: out / f"{name}.o" for name in sources}


def link(out: Path, made: dict[str, Path], kernels: Iterable[Kernel], name: str, parts: Iterable[str] = ()) -> Path:
    """A program with these kernels: the driver's, or one of other `parts`."""
    parts = tuple(parts) or ("driver", "setup")
    used = [made[part] for part in (*parts, "input", *COMMON, *[kernel.name for kernel in kernels])]
    # The op names the runner for DeepSeek's scales, which gpt-oss never makes: it is left out.
    left_out = ["-Xlinker", "--unresolved-symbols=ignore-in-object-files"] if "op" in parts else []
    subprocess.run([nvcc(), "-gencode=arch=compute_90a,code=sm_90a", *left_out, *used, "-o", out / name], check=True)
    return out / name
