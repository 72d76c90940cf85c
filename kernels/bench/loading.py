"""The library under test: a built package folder, or one compiled here and now with the machine's own nvcc."""

from __future__ import annotations

import ctypes
import hashlib
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

KERNELS = Path(__file__).resolve().parent.parent


def package(folder: Path | None) -> Any:
    """The module sparkforge_kernels of a folder that `invoke kernels.build` made, or of a build for this device."""
    import torch  # noqa: PLC0415  a cross build asks no device

    major, minor = torch.cuda.get_device_capability()
    if folder is None:
        folder = native(f"{major}{minor}{'f' if major == 12 else ''}")  # noqa: PLR2004  the family of SM12x
    folder = folder.resolve()
    sys.path.insert(0, str(folder))
    import sparkforge_kernels  # noqa: PLC0415  it is found only now

    if not Path(sparkforge_kernels.__file__).is_relative_to(folder):
        sys.exit(f"another sparkforge_kernels is in the way: {sparkforge_kernels.__file__}")
    if not sparkforge_kernels.supports((major, minor)):
        sys.exit(f"the library holds code for {sparkforge_kernels.archs()}, this device is {major}.{minor}")
    return sparkforge_kernels


def native(arch: str, folder: Path | None = None) -> Path:
    """Folder of the package, compiled by the nvcc on PATH for one architecture, as 90 or 121f."""
    from tvm_ffi import libinfo  # noqa: PLC0415  a built package needs no headers

    folder = folder or Path(tempfile.mkdtemp(prefix="sparkforge-kernels-"))
    module = folder / "sparkforge_kernels"
    shutil.copytree(KERNELS / "python" / "sparkforge_kernels", module)
    library = module / "lib" / "libsparkforge_kernels.so"
    library.parent.mkdir()
    includes = [f"-I{KERNELS}/include", f"-I{KERNELS}/csrc", f"-I{libinfo.find_include_path()}"]
    includes.append(f"-I{libinfo.find_dlpack_include_path()}")
    sources = sorted(path for path in (KERNELS / "csrc").iterdir() if path.suffix in (".cu", ".cc"))
    compile_library(library, arch, [*includes, *map(str, sources)])
    major = arch.rstrip("af")[:-1]
    said = {
        "sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
        "archs": [f"{major}.{arch[len(major) :]}"],
        "platform": f"linux/{platform.machine()}",
        "nvcc": "own",
        "tvm_ffi": "0.1.9",
        "exports": [],
    }
    (module / "build.json").write_text(json.dumps(said))
    return folder


def facts(kernels: Any) -> dict[str, Any]:
    """Of the library and the device, for a result."""
    import torch  # noqa: PLC0415

    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "capability": [properties.major, properties.minor],
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "library": kernels.build_facts(),
        "clocks": clocks(),
    }


def clocks() -> str:
    """What nvidia-smi says now."""
    query = "clocks.sm,clocks.mem,temperature.gpu,power.draw"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


def sources() -> list[Path]:
    """What the dense kernels are compiled from."""
    names = (
        "binding.h",
        "launch.h",
        "launch_tiles.cuh",
        "dense_arguments.h",
        "mxfp4_linear_decode*",
        "lm_head_topk_decode*",
    )
    found = [path for name in names for path in sorted((KERNELS / "csrc").glob(name))]
    return [*found, *sorted((KERNELS / "include" / "sparkforge").glob("*.cuh"))]


def compile_library(library: Path, arch: str, words: list[str]) -> None:
    """One shared library for one architecture from sources and flags."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    flags = ["-std=c++17", "-O3", "-shared", "-Xcompiler=-fPIC,-fvisibility=hidden", "-cudart=static", "--threads=0"]
    subprocess.run(
        [nvcc, *flags, f"-gencode=arch=compute_{arch},code=sm_{arch}", "-o", str(library), *words], check=True
    )


def ceilings(library: Path | None, arch: str) -> ctypes.CDLL:
    """The kernels of ceilings.cu, compiled here where no library is given."""
    if library is None:
        library = Path(tempfile.mkdtemp(prefix="sparkforge-ceilings-")) / "ceilings.so"
        compile_library(
            library, arch, [f"-I{KERNELS}/include", f"-I{KERNELS}/csrc", str(KERNELS / "bench" / "ceilings.cu")]
        )
    return ctypes.CDLL(str(library.resolve()))
