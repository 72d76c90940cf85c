"""What compiles FlashInfer's modules: the toolchain of the kernels, more headers, and stubs of libraries to link with.

FlashInfer's MoE includes headers of cuBLAS, cuRAND and NVRTC. They come in wheels of half a gigabyte, whose libraries
nothing needs at compile time. So only the headers are kept. For each library that a module names there is a stub with
the same soname and functions: read from the real library's own table, and for the driver from its header.
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
from sparkforge.core.paths import IMAGES
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store
from sparkforge.inputs import toolchain
from sparkforge.inspect import elf

_KIND = "toolchain"
_LAYOUT = 2
_HEADERS = "nvidia/cu13/include/"
_LIBRARIES = ("libnvrtc.so.13",)
_STUB = IMAGES / "lay" / "stub.py"


@dataclass(frozen=True)
class ModuleTools(toolchain.ReadyTools):
    """A toolchain for modules on disk.

    Attributes:
        more: folder with more headers in `include`, and stubs in `lib`.
        identity: everything that decides what comes out; part of every key.
        platform: that it compiles for.
    """

    more: Path
    identity: str
    platform: Platform


def identity(chosen: toolchain.Toolchain) -> str:
    """Identity of the toolchain for FlashInfer's modules; fetches nothing."""
    return key_of(chosen.identity, [wheel.sha256 for wheel in _wheels(chosen)], _LAYOUT, _STUB)


def ready(store: Store, target: Platform) -> ModuleTools:
    """The toolchain for a target, fetched and laid out if missing.

    Raises:
        CheckFailed: a wheel's content is not the pinned one.
        EnvironmentLacks: no compiler, or the index has no such file.
    """
    chosen = toolchain.choose(target)
    basic = toolchain.ready(store, chosen)
    more = _more(store, chosen, basic.cuda)
    return ModuleTools(**vars(basic), more=more, identity=identity(chosen), platform=target)


def _wheels(chosen: toolchain.Toolchain) -> Sequence[toolchain.ToolWheel]:
    return chosen.recipe.modules[chosen.target.oci]


def _more(store: Store, chosen: toolchain.Toolchain, cuda: Path) -> Path:
    wheels = _wheels(chosen)
    key = key_of("modules", _LAYOUT, [wheel.sha256 for wheel in wheels], chosen.target.oci, _STUB)
    if store.has(_KIND, key):
        return store.path(_KIND, key)
    files, stub = toolchain.fetched(store, "modules", wheels), _stub()
    with store.writing(_KIND, key) as beside:
        library = beside / "lib"
        library.mkdir()
        found = {soname for file in files for soname in _taken(file, beside, chosen.target, stub)}
        if missing := set(_LIBRARIES) - found:
            raise CheckFailed(f"no wheel holds {', '.join(sorted(missing))}", why=", ".join(w.name for w in wheels))
        driver = stub.functions((cuda / "include" / "cuda.h").read_text(errors="replace"))
        stub.write(library / "libcuda.so", chosen.target.triple, "libcuda.so.1", driver)
        # Relative: a store may be moved, or reached by another name.
        (library / "libcudart.so").symlink_to(Path("..", "..", cuda.name, "lib", "libcudart.so.13"))
    return store.path(_KIND, key)


def _taken(wheel: Path, into: Path, target: Platform, stub: ModuleType) -> list[str]:
    """Lay out a wheel's headers, and a stub of each library in it that modules name; sonames of those."""
    found = []
    with zipfile.ZipFile(wheel) as archive:
        for item in archive.infolist():
            name, soname = item.filename, item.filename.rpartition("/")[2]
            if name.startswith(_HEADERS) and not item.is_dir() and ".." not in name:
                place = into / name.removeprefix("nvidia/cu13/")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(archive.read(item))
            elif soname in _LIBRARIES:
                real = into / "lib" / "real"
                real.write_bytes(archive.read(item))
                short = soname.partition(".so")[0] + ".so"
                stub.write(into / "lib" / short, target.triple, soname, elf.read_elf(real).exports)
                real.unlink()
                found.append(soname)
    return found


def _stub() -> ModuleType:
    """images/lay/stub.py, which stands alone so that it runs in an image."""
    spec = importlib.util.spec_from_file_location("sparkforge_stub", _STUB)
    assert spec is not None  # noqa: S101  the file is part of the project
    assert spec.loader is not None  # noqa: S101  as above
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made
