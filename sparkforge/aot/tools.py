"""What compiles FlashInfer's modules: the toolchain of the kernels, more headers, and stubs of libraries to link with.

FlashInfer's MoE includes headers of cuBLAS, cuRAND and NVRTC, which come in wheels of half a gigabyte with libraries
that nothing of it needs while it is compiled. Of those wheels the headers are kept, and for each library that a module
names a stub with the same soname and functions, read from the real one's own table, for the driver's from its header.
"""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from sparkforge.core.errors import CheckFailed
from sparkforge.core.hashing import key_of
from sparkforge.core.paths import IMAGES, shown
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store
from sparkforge.inputs import toolchain
from sparkforge.inputs.fetch import Wanted, fetch_all
from sparkforge.inputs.recipes import File
from sparkforge.inspect import elf

_KIND = "toolchain"
_LAYOUT = 2
_HEADERS = "nvidia/cu13/include/"
_LIBRARIES = ("libnvrtc.so.13",)
_STUB = IMAGES / "lay" / "stub.py"


@dataclass(frozen=True)
class ModuleTools:
    """A toolchain on disk.

    Attributes:
        nvcc: the compiler driver.
        cxx: g++ for the target.
        cuda: folder with the target's CUDA headers and runtime library.
        more: folder with the further headers, and stubs in `lib`.
        tvm_ffi: folder with TVM-FFI's headers and library.
        identity: all that decides what comes out; part of every key.
        platform: that it compiles for.
    """

    nvcc: Path
    cxx: str
    cuda: Path
    more: Path
    tvm_ffi: Path
    identity: str
    platform: Platform


def identity(chosen: toolchain.Toolchain) -> str:
    """Identity of the toolchain for FlashInfer's modules; fetches nothing."""
    return key_of(chosen.identity, [wheel.sha256 for wheel in _wheels(chosen)], _LAYOUT, _STUB)


def ready(store: Store, target: Platform) -> ModuleTools:
    """The toolchain for a target, fetched and laid out where it is not there.

    Raises:
        CheckFailed: a wheel is not the pinned content.
        EnvironmentLacks: no compiler, or the index has no such file.
    """
    chosen = toolchain.choose(target)
    basic = toolchain.ready(store, chosen)
    more = _more(store, chosen, basic.cuda)
    return ModuleTools(basic.nvcc, basic.cxx, basic.cuda, more, basic.tvm_ffi, identity(chosen), target)


def _wheels(chosen: toolchain.Toolchain) -> Sequence[toolchain.Wheel]:
    return chosen.recipe.modules["linux/amd64" if chosen.target.debian == "amd64" else "linux/arm64"]


def _more(store: Store, chosen: toolchain.Toolchain, cuda: Path) -> Path:
    wheels = _wheels(chosen)
    key = key_of("modules", _LAYOUT, [wheel.sha256 for wheel in wheels], chosen.target.oci, _STUB)
    folder = store.path(_KIND, key)
    if folder.is_dir():
        return folder
    where = shown(toolchain.RECIPE)
    wanted = [Wanted(File(one.name, one.sha256), one.package, f"{where}: modules: {one.name}") for one in wheels]
    files = fetch_all(store, wanted, what="fetching headers:")
    stub = _stub()
    with store.writing(_KIND, key) as beside:
        (beside / "lib").mkdir()
        found = set()
        for file in files:
            _headers(file, beside)
            found |= _stubs(file, beside / "lib", chosen.target, stub)
        if missing := set(_LIBRARIES) - found:
            raise CheckFailed(f"no wheel holds {', '.join(sorted(missing))}", why=", ".join(w.name for w in wheels))
        driver = stub.functions((cuda / "include" / "cuda.h").read_text(errors="replace"))
        stub.write(beside / "lib" / "libcuda.so", chosen.target.triple, "libcuda.so.1", driver)
        # Relative: a store may be moved, or reached by another name.
        (beside / "lib" / "libcudart.so").symlink_to(Path("..", "..", cuda.name, "lib", "libcudart.so.13"))
    return folder


def _headers(wheel: Path, into: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for item in archive.infolist():
            if item.filename.startswith(_HEADERS) and not item.is_dir() and ".." not in item.filename:
                place = into / item.filename.removeprefix("nvidia/cu13/")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(archive.read(item))


def _stubs(wheel: Path, into: Path, target: Platform, stub: ModuleType) -> set[str]:
    found = set()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            soname = name.rpartition("/")[2]
            if soname in _LIBRARIES:
                short = soname.partition(".so")[0] + ".so"
                real = into / "real"
                real.write_bytes(archive.read(name))
                stub.write(into / short, target.triple, soname, elf.read_elf(real).exports)
                real.unlink()
                found.add(soname)
    return found


def _stub() -> ModuleType:
    """images/lay/stub.py, which stands alone so that it runs in an image."""
    spec = importlib.util.spec_from_file_location("sparkforge_stub", _STUB)
    assert spec is not None  # noqa: S101  the file is part of the project
    assert spec.loader is not None  # noqa: S101  as above
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made
