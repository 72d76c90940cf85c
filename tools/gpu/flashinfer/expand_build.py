"""Compiles expand_kernel.cu from a FlashInfer source tree, as it is and with its guard opened for sm_90.

The device functions that quantize to MXFP8 and that find the place of a scale factor stand under a guard for sm_100
and later, and return nothing below. Nothing in them needs an instruction that sm_90 lacks: `open_guards` writes a
copy of their header in which these two guards begin at sm_90. It exists for this check alone.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

HEADER = "csrc/nv_internal/tensorrt_llm/kernels/quantization_utils.cuh"
GUARD = "__CUDA_ARCH__ >= 1000"
GUARDED = ("uint64_t cvt_warp_fp16_to_mxfp8(", "uint8_t* cvt_quant_get_sf_out_offset(")
DEFINES = (
    "NDEBUG ENABLE_BF16 ENABLE_FP8 ENABLE_FP4 ENABLE_FP8_BLOCK_SCALE USING_OSS_CUTLASS_MOE_GEMM COMPILE_HOPPER_TMA_GEMMS "
    "COMPILE_HOPPER_TMA_GROUPED_GEMMS CUTLASS_ENABLE_GDC_FOR_SM90=1 FLASHINFER_ENABLE_FP8_E8M0 FLASHINFER_ENABLE_FP4_E2M1 "
    "FLASHINFER_ENABLE_F16 FLASHINFER_ENABLE_BF16 FLASHINFER_ENABLE_FP8_E4M3 FLASHINFER_ENABLE_FP8_E5M2"
)

ARCH = ("-gencode=arch=compute_90a,code=sm_90a",)


def open_guards(tree: Path, folder: Path) -> Path:
    """The header with the two guards opened, in `folder`, where the include path finds it first."""
    text = (tree / HEADER).read_text()
    for name in GUARDED:
        assert text.count(name) == 1, f"{name} stands {text.count(name)} times in {HEADER}"
        head, tail = text.split(name)
        assert GUARD in tail[:400], f"{name} has no guard for sm_100 any more"
        text = head + name + tail.replace(GUARD, "__CUDA_ARCH__ >= 900", 1)
    out = folder / HEADER.removeprefix("csrc/nv_internal/")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text)
    return folder


def compile_library(tree: Path, folder: Path, *, opened: bool) -> Path:
    """`expand_opened.so` or `expand_guarded.so` in `folder`.

    Raises:
        subprocess.CalledProcessError: the compiler's message is on stderr.
    """
    internal = tree / "csrc/nv_internal"
    kernels = internal / "tensorrt_llm/kernels/cutlass_kernels"
    includes = [
        *([open_guards(tree, folder / "opened")] if opened else []),
        internal, internal / "include", internal / "tensorrt_llm/cutlass_extensions/include", kernels / "include", kernels,
        tree / "csrc/fused_moe/cutlass_backend", tree / "include", tree / "csrc", tree / "3rdparty/cutlass/include",
        tree / "3rdparty/cutlass/tools/util/include", tree / "3rdparty/spdlog/include",
    ]  # fmt: skip
    common = [internal / f"cpp/common/{name}.cpp" for name in ("envUtils", "logger", "stringUtils", "tllmException")]
    common.append(kernels / "moe_gemm/moe_gemm_tma_warp_specialized_input.cu")
    library = folder / f"expand_{'opened' if opened else 'guarded'}.so"
    nvcc = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin/nvcc"
    folder.mkdir(parents=True, exist_ok=True)
    flags = [*[f"-D{name}" for name in DEFINES.split()], *[f"-I{path}" for path in includes]]
    sources = [Path(__file__).resolve().parent / "expand_kernel.cu", *common]
    for source in sources:  # the compiler tells of one file at a time which ones it reads
        told = library.with_name(f"{library.stem}-{source.stem}.d")
        subprocess.run([nvcc, "-M", "-MF", told, "-std=c++17", *ARCH, *flags, source], check=True)
    subprocess.run(
        [
            nvcc, "-shared", "-Xcompiler=-fPIC", "-std=c++17", "-O3", "-w", "-use_fast_math", "--expt-relaxed-constexpr",
            *ARCH, *flags, *sources, "-Xlinker=--no-undefined", "-lcuda", "-o", library,
        ],
        check=True,
    )  # fmt: skip
    return library


if __name__ == "__main__":
    import sys

    for opened in (True, False):
        print(compile_library(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), opened=opened))
