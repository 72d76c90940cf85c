"""What a build of modules says about itself: `aot.json`; sparkforge/aot/__init__.py describes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from sparkforge.core.errors import CheckFailed
from sparkforge.core.hashing import key_of

NAME = "aot.json"
FORMAT = 2


class BuiltUnit(msgspec.Struct, frozen=True):
    """One source: where it belongs, its object, what that cost when it was compiled, how many files it read."""

    module: str
    path: str
    object: str
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    size: int
    reads: int


class BuiltModule(msgspec.Struct, frozen=True, kw_only=True):
    """One library.

    Attributes:
        name: as FlashInfer asks for it.
        file: below the folder, NAME/NAME.so.
        sha256: of it.
        size: bytes.
        exports: functions that TVM-FFI finds in it.
        needed: sonames that it asks for.
        versions: newest symbol version of each family that it asks for: {"GLIBC": "2.34"}.
        sources: hash over path and content of every file of FlashInfer that it was made from.
        link_seconds: wall time of linking, then or now.
    """

    name: str
    file: str
    sha256: str
    size: int
    exports: list[str]
    needed: list[str]
    versions: dict[str, str]
    sources: str
    link_seconds: float


class AotFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A build.

    Attributes:
        format: of this file.
        key: of the names and contents of the modules.
        platform: as linux/arm64.
        archs: as 12.1f.
        tree: git tree id of FlashInfer's sources.
        toolchain: identity.
        versions: of nvcc, the host compiler and the wheels, in words.
        modules: by their order in FlashInfer's list.
        units: of all modules.
        reads: {path: sha256} of the files of FlashInfer that any unit read.
        left_out: modules that were not compiled, with the parts of profiles that need them.
    """

    format: int
    key: str
    platform: str
    archs: list[str]
    tree: str
    toolchain: str
    versions: dict[str, str]
    modules: list[BuiltModule]
    units: list[BuiltUnit]
    reads: dict[str, str]
    left_out: dict[str, list[str]]


def key_of_modules(modules: list[BuiltModule]) -> str:
    """Name of a set of modules in an image: what they are called and hold, and nothing else."""
    return key_of("modules 1", {module.file: module.sha256 for module in modules})


def sources_hash(reads: Mapping[str, str]) -> str:
    """Hash over (path, sha256)."""
    return key_of("sources 1", dict(reads))


def read(folder: Path) -> AotFacts:
    """The facts of a build's folder.

    Raises:
        CheckFailed: there are none, or they are in another format.
    """
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=AotFacts)
    except (OSError, msgspec.DecodeError) as bad:
        raise CheckFailed(f"{folder} holds no modules", why=str(bad), do=f"rm -r {folder}  and build again") from bad


def write(folder: Path, facts: AotFacts) -> None:
    """Write `aot.json`."""
    (folder / NAME).write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=1) + b"\n")
