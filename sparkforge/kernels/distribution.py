"""The folder that goes into site-packages: the Python package with its library, and a dist-info that pip lists."""

from __future__ import annotations

import base64
import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sparkforge.core.arch import Arch
from sparkforge.core.errors import CheckFailed
from sparkforge.core.hashing import sha256_file
from sparkforge.core.paths import KERNELS
from sparkforge.inputs.kernel_list import Declaration
from sparkforge.inputs.toolchain import Toolchain

MODULE = "sparkforge_kernels"
LIBRARY = f"{MODULE}/lib/lib{MODULE}.so"
FACTS = f"{MODULE}/build.json"


class LibraryFacts(msgspec.Struct, frozen=True):
    """build.json: what the library is, for the package itself and for the image's labels.

    Attributes:
        sha256: of the library.
        archs: architectures that it holds code for, as 12.1f.
        platform: as linux/arm64.
        nvcc: version that compiled it.
        tvm_ffi: version that it was compiled against.
        exports: its functions.
    """

    sha256: str
    archs: tuple[str, ...]
    platform: str
    nvcc: str
    tvm_ffi: str
    exports: tuple[str, ...]


def sources() -> dict[str, Path]:
    """Files of the Python package, by name within it."""
    root = KERNELS / "python" / MODULE
    return {str(path.relative_to(root)): path for path in sorted(root.rglob("*")) if path.suffix in (".py", ".typed")}


def lay_out(folder: Path, linked: Path, declared: Declaration, archs: Sequence[Arch], chosen: Toolchain) -> None:
    """Fill a folder with the package around a linked library, which is moved to its place."""
    library = folder / LIBRARY
    library.parent.mkdir(parents=True)
    linked.rename(library)
    library.chmod(0o755)
    for name, path in sources().items():
        (folder / MODULE / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / MODULE / name)
    facts = LibraryFacts(
        sha256=sha256_file(library),
        archs=tuple(arch.text for arch in archs),
        platform=chosen.target.oci,
        nvcc=chosen.recipe.nvcc,
        tvm_ffi=chosen.recipe.tvm_ffi,
        exports=tuple(sorted(name for kernel in declared.kernels.values() for name in kernel.exports)),
    )
    (folder / FACTS).write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n")
    _dist_info(folder, declared, chosen)


def read(folder: Path) -> LibraryFacts:
    """Facts of a laid out package.

    Raises:
        CheckFailed: there is none, or it was changed.
    """
    try:
        return msgspec.json.decode((folder / FACTS).read_bytes(), type=LibraryFacts, strict=True)
    except (OSError, msgspec.MsgspecError) as bad:
        raise CheckFailed(
            "a stored kernel library is not whole", why=f"{folder / FACTS}: {bad}", do=f"rm -r {folder}"
        ) from bad


def _dist_info(folder: Path, declared: Declaration, chosen: Toolchain) -> None:
    info = folder / f"{MODULE}-{declared.version}.dist-info"
    info.mkdir()
    summary = "CUDA kernels of Sparkforge for NVIDIA SM12x, exported through TVM-FFI"
    metadata = (
        f"Metadata-Version: 2.1\nName: {declared.package}\nVersion: {declared.version}\nSummary: {summary}\n"
        f"License: Apache-2.0\nRequires-Python: >=3.10\nRequires-Dist: apache-tvm-ffi>={chosen.recipe.tvm_ffi}\n"
    )
    tag = f"py3-none-linux_{chosen.target.machine}"
    wheel = f"Wheel-Version: 1.0\nGenerator: sparkforge\nRoot-Is-Purelib: false\nTag: {tag}\n"
    points = f"[vllm.decode_kernels]\nsparkforge = {MODULE}.decode:decode_kernels\n"  # read by patch V-10
    texts = {"METADATA": metadata, "WHEEL": wheel, "INSTALLER": "sparkforge\n", "entry_points.txt": points}
    for name, text in texts.items():
        (info / name).write_text(text)
    record = info / "RECORD"
    lines = [_recorded(folder, path) for path in sorted(folder.rglob("*")) if path.is_file()]
    record.write_text("\n".join([*lines, f"{record.relative_to(folder)},,"]) + "\n")


def _recorded(folder: Path, path: Path) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
    return f"{path.relative_to(folder)},sha256={digest},{path.stat().st_size}"
