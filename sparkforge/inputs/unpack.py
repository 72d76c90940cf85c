"""CUDA and TVM-FFI wheels laid out as one CUDA folder, as nvcc expects to find itself."""

from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath

from sparkforge.core.errors import CheckFailed

_CUDA_IN_WHEEL = "nvidia/cu13/"
_FFI_IN_WHEEL = ("tvm_ffi/include/", "tvm_ffi/lib/libtvm_ffi.so")


def unpack(wheel: Path, into: Path) -> None:
    """Lay out what a CUDA or TVM-FFI wheel holds as one CUDA folder: bin, include, lib, nvvm, tvm_ffi.

    A file is executable if the wheel says so for its owner; pip spreads that bit, zipfile drops it.

    Raises:
        CheckFailed: a name leads out of the folder, or two wheels hold different files of one name.
    """
    with zipfile.ZipFile(wheel) as archive:
        for item in archive.infolist():
            name = item.filename.removeprefix(_CUDA_IN_WHEEL)
            ours = name != item.filename or item.filename.startswith(_FFI_IN_WHEEL)
            if item.is_dir() or not ours:
                continue
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise CheckFailed(f"{wheel.name} holds a path that leads out of it", why=item.filename)
            place = into / name
            content = archive.read(item)
            if place.exists() and place.read_bytes() != content:
                raise CheckFailed(f"{wheel.name} and another wheel both hold {name}", why="with different content")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
            place.chmod(0o755 if (item.external_attr >> 16) & 0o100 else 0o644)
