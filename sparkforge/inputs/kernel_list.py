"""Which kernels there are, and what their compiled code must hold: kernels/kernels.yaml."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from sparkforge.core.arch import Arch
from sparkforge.core.errors import BadInput
from sparkforge.core.paths import KERNELS, shown
from sparkforge.inputs.recipes import load

FILE = "kernels.yaml"
ANY = "any"


class Kernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kernel.

    Attributes:
        summary: one line for people.
        sources: .cu and .cc files, relative to the folder of the declaration.
        exports: functions that the library offers through TVM-FFI.
        entry: name of the `__global__` function in its source.
        mma: block_scaled where the machine code must hold QMMA or OMMA.
        archs: `any`, or the only architectures that it is compiled for.
    """

    summary: str
    sources: tuple[str, ...]
    exports: tuple[str, ...]
    entry: str
    mma: Literal["none", "block_scaled"]
    archs: Literal["any"] | tuple[str, ...] = "any"

    def wants(self, arch: Arch) -> bool:
        """Whether the kernel must have code for an architecture."""
        return self.archs == ANY or arch.text in self.archs


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    package: str
    version: str
    kernels: dict[str, Kernel]


@dataclass(frozen=True)
class Declaration:
    """The kernels of one folder.

    Attributes:
        root: the folder; sources are relative to it, `include` and `csrc` below it are searched for headers.
        package: distribution name.
        version: its version.
        kernels: by name, sorted.
    """

    root: Path
    package: str
    version: str
    kernels: dict[str, Kernel]

    @property
    def sources(self) -> tuple[str, ...]:
        """Every source, each once, sorted."""
        return tuple(sorted({source for kernel in self.kernels.values() for source in kernel.sources}))


def load_kernels(names: Iterable[str] | None = None, *, root: Path = KERNELS) -> Declaration:
    """The declared kernels, or those named.

    Raises:
        BadInput: the file is not valid, a source is not there, or a name is not declared.
    """
    path = root / FILE
    file = load(path, _File)
    chosen = sorted(file.kernels if names is None else set(names))
    for name in chosen:
        if name not in file.kernels:
            raise BadInput(f"there is no kernel {name!r}", why=f"{shown(path)}: {', '.join(sorted(file.kernels))}")
        kernel = file.kernels[name]
        for source in kernel.sources:
            if not (root / source).is_file():
                raise BadInput(f"{shown(path)} is not valid", why=f"kernels.{name}.sources: {source} is not there")
        if isinstance(kernel.archs, tuple):
            for arch in kernel.archs:
                Arch.parse(arch)
    if not chosen:
        raise BadInput("no kernel is named", why=f"{shown(path)}: {', '.join(sorted(file.kernels))}")
    return Declaration(root, file.package, file.version, {name: file.kernels[name] for name in chosen})
