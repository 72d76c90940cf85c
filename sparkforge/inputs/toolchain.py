"""The CUDA toolchain: nvcc, the target's headers and libraries, and the programs that read compiled code.

Everything comes from hashed wheels (`recipes/toolchain.yaml`), each set laid out in the store as one CUDA folder. The
machine's own nvcc compiles instead if it is of exactly that version. What is linked and included comes from the wheels
in either case, so the library has the same bytes (a test holds that).
"""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

import msgspec

from sparkforge.core.errors import BadInput, CheckFailed, EnvironmentLacks
from sparkforge.core.hashing import key_of
from sparkforge.core.paths import RECIPES, shown
from sparkforge.core.platforms import OciPlatform, Platform
from sparkforge.core.proc import run
from sparkforge.core.store import Store
from sparkforge.inputs.fetch import Wanted, fetch_all
from sparkforge.inputs.recipes import File, Sha256, load

RECIPE = RECIPES / "toolchain.yaml"
OWN_NVCC = "SPARKFORGE_OWN_NVCC"  # 0: compile with the nvcc of the wheels even where the machine has the same

_KIND = "toolchain"
_LAYOUT = 1  # of the unpacked folders; part of their key
_CUDA_IN_WHEEL = "nvidia/cu13/"
_FFI_IN_WHEEL = ("tvm_ffi/include/", "tvm_ffi/lib/libtvm_ffi.so")


class ToolWheel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One wheel: its distribution, its exact name, its content."""

    package: str
    name: str
    sha256: Sha256


class ToolchainRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """recipes/toolchain.yaml.

    Attributes:
        nvcc: version that compiles, as 13.0.88.
        tvm_ffi: version whose headers and library are compiled against.
        compiler: wheels that run on the building machine.
        target: headers and libraries of the machine that the library is for.
        modules: more headers of that machine, for FlashInfer's modules.
        inspector: cuobjdump and nvdisasm for the building machine.
    """

    nvcc: str
    tvm_ffi: str
    compiler: dict[OciPlatform, tuple[ToolWheel, ...]]
    target: dict[OciPlatform, tuple[ToolWheel, ...]]
    modules: dict[OciPlatform, tuple[ToolWheel, ...]]
    inspector: dict[OciPlatform, tuple[ToolWheel, ...]]


@dataclass(frozen=True)
class Toolchain:
    """What compiles for one target; nothing is fetched before `ready`.

    Attributes:
        recipe: the pinned versions.
        host: the machine that compiles.
        target: the machine that the library is for.
        own_nvcc: the machine's own nvcc of the pinned version; None where the wheels' is used.
        cxx: g++ for the target, on this machine.
        identity: everything that decides the bytes that come out; part of every key.
    """

    recipe: ToolchainRecipe
    host: Platform
    target: Platform
    own_nvcc: Path | None
    cxx: str
    identity: str


@dataclass(frozen=True)
class ReadyTools:
    """A toolchain on disk.

    Attributes:
        nvcc: the compiler driver.
        cxx: g++ for the target.
        cuda: folder with the target's CUDA `include` and `lib`.
        tvm_ffi: folder with TVM-FFI's `include` and `lib`.
    """

    nvcc: Path
    cxx: str
    cuda: Path
    tvm_ffi: Path


@cache
def recipe() -> ToolchainRecipe:
    """The pinned toolchain.

    Raises:
        BadInput: the recipe is not valid.
    """
    return load_recipe(RECIPE)


def load_recipe(path: Path) -> ToolchainRecipe:
    """A toolchain recipe whose compiler and TVM-FFI are of the versions that it names.

    Raises:
        BadInput: not valid, or a wheel is of another version; names the key.
    """
    read = load(path, ToolchainRecipe)
    for section, package, version in (
        ("compiler", "nvidia-cuda-nvcc", read.nvcc),
        ("compiler", "nvidia-nvvm", read.nvcc),
        ("compiler", "nvidia-cuda-crt", read.nvcc),
        ("target", "nvidia-cuda-crt", read.nvcc),  # its headers check the compiler's version
        ("target", "apache-tvm-ffi", read.tvm_ffi),
    ):
        for platform, wheels in getattr(read, section).items():
            names = [wheel.name for wheel in wheels if wheel.package == package]
            if len(names) != 1 or f"-{version}-" not in names[0]:
                raise BadInput(
                    f"{shown(path)} is not a valid recipe",
                    why=f"{section}.{platform}: wanted one wheel of {package} {version}, found {names}",
                )
    return read


def choose(target: Platform, *, host: Platform | None = None) -> Toolchain:
    """The toolchain for a target, by looking at this machine; fetches nothing.

    Raises:
        EnvironmentLacks: no g++ for the target.
    """
    pinned, host = recipe(), host or Platform.host()
    cxx = "g++" if host == target else f"{target.triple}-g++"
    wheels = [wheel.sha256 for wheel in pinned.target[target.oci]]
    identity = key_of("nvcc", pinned.nvcc, _host_compiler(cxx), target.oci, wheels)
    return Toolchain(pinned, host, target, own_nvcc(pinned.nvcc), cxx, identity)


def own_nvcc(version: str) -> Path | None:
    """The machine's nvcc if it is complete and of exactly this version."""
    if os.environ.get(OWN_NVCC) == "0":
        return None
    home = os.environ.get("CUDA_HOME")
    for candidate in (home and f"{home}/bin/nvcc", shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if not candidate or not Path(candidate).is_file():
            continue
        nvcc = Path(candidate).resolve()
        whole = nvcc.parent.parent.joinpath("nvvm", "bin", "cicc").is_file() and (nvcc.parent / "ptxas").is_file()
        if whole and nvcc_version(nvcc) == version:
            return nvcc
    return None


def nvcc_version(nvcc: Path) -> str:
    """Version that an nvcc names, as 13.0.88; empty when it names none."""
    found = re.search(r"\bV([0-9]+\.[0-9]+\.[0-9]+)", run([nvcc, "--version"], check=False).text)
    return found[1] if found else ""


def ready(store: Store, chosen: Toolchain) -> ReadyTools:
    """The chosen toolchain on disk, fetched and unpacked if missing.

    Raises:
        CheckFailed: a wheel's content is not the pinned one, or lacks what it must hold.
        EnvironmentLacks: the index has no such file.
    """
    target = _laid_out(store, "target", chosen.recipe.target[chosen.target.oci], ("lib/libcudart_static.a",))
    nvcc = chosen.own_nvcc
    if nvcc is None:
        wheels = chosen.recipe.compiler[chosen.host.oci]
        nvcc = _laid_out(store, "compiler", wheels, ("bin/nvcc", "bin/ptxas", "nvvm/bin/cicc")) / "bin" / "nvcc"
    return ReadyTools(nvcc, chosen.cxx, target, target / "tvm_ffi")


def inspector(store: Store, *, host: Platform | None = None) -> Path:
    """Folder of cuobjdump and nvdisasm for this machine, from the wheels.

    Raises:
        CheckFailed: a wheel's content is not the pinned one.
        EnvironmentLacks: the index has no such file.
    """
    wheels = recipe().inspector[(host or Platform.host()).oci]
    return _laid_out(store, "inspector", wheels, ("bin/cuobjdump", "bin/nvdisasm")) / "bin"


def fetched(store: Store, what: str, wheels: Sequence[ToolWheel]) -> list[Path]:
    """Wheels of one section of the recipe, verified.

    Raises:
        CheckFailed: a wheel's content is not the pinned one.
        EnvironmentLacks: the index has no such file.
    """
    wanted = [Wanted(File(w.name, w.sha256), w.package, f"{shown(RECIPE)}: {what}: {w.name}") for w in wheels]
    return fetch_all(store, wanted, what=f"fetching the {what} toolchain:")


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


@cache
def _host_compiler(cxx: str) -> str:
    if not shutil.which(cxx):
        # Debian's name of the package: g++-aarch64-linux-gnu, g++-x86-64-linux-gnu.
        package = cxx if cxx == "g++" else f"g++-{cxx.removesuffix('-g++').replace('_', '-')}"
        raise EnvironmentLacks(
            f"{cxx} is not installed",
            why="it compiles the host side of the kernels",
            do=f"invoke setup  (or: apt-get install {package})",
        )
    return run([cxx, "--version"]).text.splitlines()[0] + " " + run([cxx, "-dumpmachine"]).text


def _laid_out(store: Store, what: str, wheels: Sequence[ToolWheel], holds: Iterable[str]) -> Path:
    key = key_of(_LAYOUT, what, [wheel.sha256 for wheel in wheels])
    if not store.has(_KIND, key):
        files = fetched(store, what, wheels)
        with store.writing(_KIND, key) as beside:
            for file in files:
                unpack(file, beside)
            for name in holds:
                if not (beside / name).is_file():
                    raise CheckFailed(f"the {what} wheels hold no {name}", why=", ".join(w.name for w in wheels))
    return store.path(_KIND, key)
