"""What is to be compiled: FlashInfer's own commands for the modules of a tree, with every path below one root.

The root is a folder that stands for a while: `flashinfer/` (the pinned wheel with the overlay laid over it, so what an
image holds), `generated/` (what FlashInfer writes for its compilers), and links to the toolchain: `cuda/`, `more/`,
`tvm_ffi/`, `compiler/`. Commands run in it with relative paths, so they are the same on every
machine, and so is `__FILE__`. One thing is not: nvcc makes names for what has internal linkage from the real path of
the source, and has no option against it. So a root always has the same place in a store, and the same
sources give the same bytes there; with a store elsewhere, such names differ.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkforge.aot import build_files
from sparkforge.aot.tools import ModuleTools
from sparkforge.core.arch import Arch
from sparkforge.core.errors import CheckFailed
from sparkforge.core.hashing import sha256_bytes
from sparkforge.core.proc import run
from sparkforge.overlay.compute import Overlay

_DESCRIBE = Path(__file__).with_name("describe.py")
_ABOVE = ("flashinfer/", "generated/", "cuda/", "more/", "tvm_ffi/")
# The CUDA headers stand in -I, since nvcc puts its own folder there, which then comes after the target's; what only the
# compiler has (fatbinary_section.h) comes last.
_CUDA = ("-Icuda/include", "-Imore/include", "-isystem", "cuda/include/cccl")


@dataclass(frozen=True)
class CompileUnit:
    """One source of one module.

    Attributes:
        module: its name.
        source: path below the root.
        words: the command, without compiler, source and output.
        cuda: whether nvcc compiles it.
    """

    module: str
    source: str
    words: tuple[str, ...]
    cuda: bool

    @property
    def identity(self) -> tuple[str, ...]:
        """What decides the object: two modules may compile one source with the same words."""
        return self.source, *self.words

    def command(self, tools: ModuleTools, out: str) -> list[str]:
        """What compiles it, to be run in the root; beside `out`, a path below it, it leaves `out.d`."""
        # g++ makes names for what has internal linkage from the output's.
        seed = f"-frandom-seed={self.source}"
        if not self.cuda:
            return [tools.cxx, "-MD", "-MF", f"{out}.d", *self.words, seed, "-c", self.source, "-o", out]
        deps = ["--generate-dependencies-with-compile", "--dependency-output", f"{out}.d"]
        own = f"-Xcompiler={seed},-idirafter,compiler/include"
        return [str(tools.nvcc), f"-ccbin={tools.cxx}", *deps, *self.words, own, "-c", self.source, "-o", out]


@dataclass(frozen=True)
class ModulePlan:
    """One module: its units in the order in which they are linked, and the libraries that it names (`-l`)."""

    name: str
    units: tuple[CompileUnit, ...]
    libraries: tuple[str, ...]


def lay(root: Path, wheel: Path, overlay: Overlay, tools: ModuleTools) -> None:
    """Fill an empty root.

    Raises:
        CheckFailed: a file that the overlay replaces differs from the wheel's.
    """
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(root, [name for name in archive.namelist() if name.startswith("flashinfer/")])
    for entry in overlay.manifest.entries:
        path = root / entry.path
        if entry.pin_sha256 and sha256_bytes(path.read_bytes()) != entry.pin_sha256:
            raise CheckFailed(f"{entry.path} of {wheel.name} is not the file that the overlay was computed for")
        path.unlink(missing_ok=True)
        if entry.sha256:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(overlay.path / "files" / entry.path, path)
    places = {"cuda": tools.cuda, "more": tools.more, "tvm_ffi": tools.tvm_ffi, "compiler": tools.nvcc.parent.parent}
    for name, target in places.items():
        (root / name).symlink_to(target)
    (root / "toolkit" / "bin").mkdir(parents=True)
    (root / "toolkit" / "bin" / "nvcc").symlink_to(tools.nvcc)  # FlashInfer asks it for its version


def describe(root: Path, python: Path, archs: Sequence[Arch], options: Mapping[str, Any]) -> list[ModulePlan]:
    """The modules that FlashInfer names, and how it compiles them.

    Args:
        root: as `lay` fills it.
        python: of an environment that has torch and what else FlashInfer imports.
        archs: of SM12x.
        options: of `flashinfer.aot_gpt_oss.gen_modules`.

    Raises:
        CheckFailed: FlashInfer cannot be imported, or names a path outside of the root.
    """
    environment = {
        **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
        "CUDA_HOME": str(root / "toolkit"),
        "CUDA_VISIBLE_DEVICES": "",
        "FLASHINFER_CUDA_ARCH_LIST": " ".join(arch.text for arch in archs),
        "FLASHINFER_WORKSPACE_BASE": str(root / "ops"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    said = run([python, "-s", _DESCRIBE, root, json.dumps(dict(options))], cwd=root, env=environment)
    described = json.loads(said.text.splitlines()[-1])
    return [_module(root, one["name"], build_files.edges(one["ninja"])) for one in described]


def _module(root: Path, name: str, edges: list[build_files.NinjaEdge]) -> ModulePlan:
    *objects, linked = edges
    if linked.rule != "link" or any(edge.rule not in {"compile", "cuda_compile"} for edge in objects):
        raise CheckFailed(f"the module {name} is built in an unknown way", why=linked.rule)
    units = tuple(_unit(root, name, edge) for edge in objects)
    return ModulePlan(name, units, tuple(word for word in linked.words if word.startswith("-l")))


def _unit(root: Path, module: str, edge: build_files.NinjaEdge) -> CompileUnit:
    (source,) = edge.inputs
    above = f"{root}/"
    words = [word.replace(f"{above}toolkit/", "cuda/").replace(above, "") for word in edge.words[1:]]
    words = _without(words, source.removeprefix(above), edge.out.removeprefix(above))
    ours = _headers(words)
    for word in (source.removeprefix(above), *ours):
        path = word.removeprefix("-I")
        if "=/" in path or path.startswith("/") or (word.startswith("-I") and not f"{path}/".startswith(_ABOVE)):
            raise CheckFailed(f"{module} names a path outside of what it is compiled in", why=word)
    return CompileUnit(module, source.removeprefix(above), tuple(ours), edge.rule == "cuda_compile")


def _without(words: list[str], source: str, out: str) -> list[str]:
    """A command's words without input, output, dependency file and what asks for them."""
    pairs = {"-c": source, "-o": out, "-MF": f"{out}.d", "--dependency-output": f"{out}.d"}
    single = {"-MMD", "--generate-dependencies-with-compile"}
    kept: list[str] = []
    skip = False
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if skip:
            skip = False
        elif word in pairs and following == pairs[word]:
            skip = True
        elif word not in single:
            kept.append(word)
    return kept


def _headers(words: list[str]) -> list[str]:
    """The same words with the toolchain's folders in the order that nvcc of any place needs."""
    kept: list[str] = []
    it = iter(words)
    for word in it:
        if word != "-isystem":
            kept.append(word)
            continue
        path = next(it)
        if not path.startswith("cuda/") and path != "python":  # no source needs Python's headers
            kept += [word, path]
    return [*kept, *_CUDA]
