"""Link a module's objects into a library that any image can load.

What differs from FlashInfer's own link: undefined symbols are an error here and not in a server. Symbols that TVM-FFI
does not look for stay inside, since each module has its own copies of FlashInfer's helpers. The symbol table goes, and
with it the names of temporary files. Needed libraries are found in the wheels beside it, by a relative path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparkforge.aot.objects import CompiledObject
from sparkforge.aot.plan import ModulePlan
from sparkforge.aot.tools import ModuleTools
from sparkforge.core import proc
from sparkforge.core.errors import CheckFailed
from sparkforge.core.hashing import key_of
from sparkforge.core.integrity import seal, sound
from sparkforge.core.store import Store
from sparkforge.inspect import elf

KIND = "aot-modules"
_FORMAT = 1
_EXPORTS = b"{ global: __tvm_ffi_*; local: *; };\n"
_FFI = "__tvm_ffi_"
# From site-packages/flashinfer/data/aot/<key>/<name>/ to site-packages.
_SITE = "$ORIGIN/../../../../.."
_RUN_PATHS = (f"{_SITE}/nvidia/cu13/lib", f"{_SITE}/tvm_ffi/lib")
_FLAGS = (
    "-shared",
    "-Wl,--build-id=none",
    "-Wl,-z,defs",
    "-Wl,--exclude-libs,ALL",
    "-Wl,--as-needed",
    "-Wl,--gc-sections",
    "-Wl,-s",
    "-Wl,--enable-new-dtags",
    *(f"-Wl,-rpath,{path}" for path in _RUN_PATHS),
)


@dataclass(frozen=True)
class LinkedModule:
    """A linked module in the store.

    Attributes:
        path: the library.
        seconds: wall time of linking it, then or now.
        cached: it was there.
    """

    path: Path
    seconds: float
    cached: bool


def link(store: Store, module: ModulePlan, objects: Sequence[CompiledObject], tools: ModuleTools) -> LinkedModule:
    """The library of a module, from the store or linked.

    Raises:
        CheckFailed: a symbol is defined nowhere, or it exports nothing.
    """
    key = key_of(
        _FORMAT, module.name, [one.key for one in objects], list(module.libraries), list(_FLAGS), tools.identity
    )
    folder = store.path(KIND, key)
    name = f"{module.name}.so"
    cached = sound(folder)
    if not cached:
        with store.writing(KIND, key) as beside:
            seconds = _linked(beside, name, module, objects, tools)
            (beside / "cost.json").write_bytes(msgspec.json.encode(seconds))
            if not exports(elf.read_elf(beside / name)):
                raise CheckFailed(f"{name} exports no function of TVM-FFI", why=f"nothing begins with {_FFI}")
            seal(beside)
    return LinkedModule(folder / name, msgspec.json.decode((folder / "cost.json").read_bytes(), type=float), cached)


def exports(library: elf.Elf) -> list[str]:
    """Functions that TVM-FFI finds in a library, by the names that Python uses."""
    names = (name.removeprefix(_FFI) for name in library.exports if name.startswith(_FFI))
    return sorted(name for name in names if not name.startswith("_"))


def _linked(
    folder: Path, name: str, module: ModulePlan, objects: Sequence[CompiledObject], tools: ModuleTools
) -> float:
    names = folder / "exports.map"
    names.write_bytes(_EXPORTS)
    folders = [f"-L{tools.more / 'lib'}", f"-L{tools.tvm_ffi / 'lib'}"]
    words = [f"-Wl,--version-script={names}", f"-Wl,-soname,{name}", "-o", str(folder / name)]
    files = [str(one.path) for one in objects]
    done = proc.run([tools.cxx, *_FLAGS, *words, *files, *folders, *module.libraries, "-ltvm_ffi", "-lpthread", "-ldl"])
    names.unlink()
    return round(done.seconds, 3)
