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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

KERNELS = Path(__file__).resolve().parent.parent
SOURCES = ("csrc/mxfp4_linear_decode.cu", "csrc/mxfp4_linear_decode_binding.cc")


def package(folder: Path | None, arch: str) -> Any:
    """The module sparkforge_kernels of a folder that `invoke kernels.build` made, or of a build for `arch` (90a)."""
    folder = folder.resolve() if folder else native(arch)
    sys.path.insert(0, str(folder))
    import sparkforge_kernels  # noqa: PLC0415  it is found only now

    if not Path(sparkforge_kernels.__file__).is_relative_to(folder):
        sys.exit(f"another sparkforge_kernels is in the way: {sparkforge_kernels.__file__}")
    return sparkforge_kernels


def native(arch: str) -> Path:
    """Folder of the package, compiled by the nvcc on PATH for one architecture, as 90a."""
    from tvm_ffi import libinfo  # noqa: PLC0415  a built package needs no headers

    folder = Path(tempfile.mkdtemp(prefix="sparkforge-kernels-"))
    module = folder / "sparkforge_kernels"
    shutil.copytree(KERNELS / "python" / "sparkforge_kernels", module)
    library = module / "lib" / "libsparkforge_kernels.so"
    library.parent.mkdir()
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    includes = [f"-I{KERNELS}/include", f"-I{KERNELS}/csrc", f"-I{libinfo.find_include_path()}"]
    includes.append(f"-I{libinfo.find_dlpack_include_path()}")
    target = f"-gencode=arch=compute_{arch},code=sm_{arch}"
    flags = ["-std=c++17", "-O3", "-shared", "-Xcompiler=-fPIC,-fvisibility=hidden", "-cudart=static", target]
    sources = [str(KERNELS / source) for source in SOURCES]
    subprocess.run([nvcc, *flags, *includes, "-o", str(library), *sources], check=True)
    major = arch.rstrip("af")[:-1]
    facts = {
        "sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
        "archs": [f"{major}.{arch[len(major) :]}"],
        "platform": f"linux/{platform.machine()}",
        "nvcc": "own",
        "tvm_ffi": "0.1.9",
        "exports": ["mxfp4_linear_decode"],
    }
    (module / "build.json").write_text(json.dumps(facts))
    return folder


def twin(flags: Sequence[str] = ()) -> Callable[..., None]:
    """The kernel's arithmetic on the CPU: (x, w, scale, bias | None, y) as NumPy bits; y is written.

    Rows are shared among threads; ctypes lets go of the interpreter while it runs.
    """
    folder = Path(tempfile.mkdtemp(prefix="sparkforge-twin-"))
    source = KERNELS / "tests" / "host" / "mxfp4_host.cc"
    command = ["g++", "-std=c++17", "-O3", "-fPIC", "-shared", *flags, f"-I{KERNELS}/include", str(source)]
    subprocess.run([*command, "-o", str(folder / "twin.so")], check=True)
    library = ctypes.CDLL(str(folder / "twin.so"))

    def call(x: Any, w: Any, scale: Any, bias: Any, y: Any) -> None:
        arrays = (x, w, scale, bias, y)
        pointers = [None if a is None else ctypes.c_void_p(a.ctypes.data) for a in arrays]
        sizes = [ctypes.c_int64(size) for size in (x.shape[0], w.shape[0], x.shape[1])]
        library.linear_decode(*pointers, *sizes)

    return call
