"""Compile our kernels into one library: each source by itself, kept by content, then linked and laid out.

The same inputs give the same bytes on every machine: sources are named relative to their folder, paths of headers are
mapped away, symbols and build ids are not kept. Undefined symbols are an error at link time; TVM-FFI's and the static
CUDA runtime's are found then, and libtvm_ffi.so (any 0.1.x from the pinned one) is already loaded when Python loads us.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sparkforge.core.arch import Arch
from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.hashing import key_of, sha256_file
from sparkforge.core.platforms import Platform
from sparkforge.core.proc import run
from sparkforge.core.store import Store, remove
from sparkforge.inputs.kernel_list import Declaration
from sparkforge.inputs.toolchain import ReadyTools, Toolchain, choose, ready
from sparkforge.kernels import distribution

_LIBRARIES = "kernels"
_OBJECTS = "kernel-objects"
_MEMORY_EACH = 2 << 30  # bytes that one compiler may take; ours stay far below, CUTLASS needs more jobs=1

_CXX = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")
_NVCC = ("-std=c++17", "-O3", "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall", "-Werror=all-warnings")
_LINK = (
    "-shared",
    "-Wl,--build-id=none",  # it would differ by nothing that matters
    "-Wl,-z,defs",  # an undefined symbol fails here and not in a server
    "-Wl,--exclude-libs,ALL",  # the static CUDA runtime stays ours
    "-Wl,--as-needed",
    "-Wl,-s",
)
_EXPORTS = b"{ global: __tvm_ffi_*; local: *; };\n"


@dataclass(frozen=True)
class KernelLibrary:
    """A built library in a folder that is ready to be copied into site-packages.

    Attributes:
        folder: holds `sparkforge_kernels/` and its dist-info.
        library: the shared library below it.
        sha256: of the library.
        archs: architectures that it holds code for.
        platform: machine that it is for.
        seconds: wall time of this build; of looking, when cached.
        cpu_seconds: CPU time of its compilers, 0.0 when cached.
        cached: whether nothing was compiled or linked.
    """

    folder: Path
    library: Path
    sha256: str
    archs: tuple[Arch, ...]
    platform: Platform
    seconds: float
    cpu_seconds: float
    cached: bool


def key(declared: Declaration, archs: Sequence[Arch], chosen: Toolchain) -> str:
    """Hash of everything that the library is made from; also the key under which it is stored."""
    return key_of(
        _headers(declared.root),
        {source: declared.root / source for source in declared.sources},
        {name: [kernel.entry, kernel.mma, kernel.exports] for name, kernel in declared.kernels.items()},
        [declared.package, declared.version],
        distribution.sources(),
        Path(__file__),
        Path(distribution.__file__),
        [arch.text for arch in archs],
        chosen.identity,
    )


def build(
    store: Store,
    declared: Declaration,
    archs: Sequence[Arch],
    platform: Platform,
    *,
    jobs: int | None = None,
) -> KernelLibrary:
    """The library of the declared kernels for these architectures, from the store or compiled.

    Args:
        store: where objects and libraries are kept.
        declared: the kernels.
        archs: at least one; each gets its own machine code, and no PTX is kept.
        platform: machine that the library is for; another than this one's is cross-compiled.
        jobs: compilers at once; None is what cores and free memory allow.

    Raises:
        BadInput: two architectures that nvcc cannot compile together.
        CheckFailed: a source does not compile or link, or the stored library was changed.
        EnvironmentLacks: no compiler, or the index does not have the toolchain.
    """
    begun, cpu = time.monotonic(), _children_cpu()
    archs = _compatible(archs)
    chosen = choose(platform)
    name = key(declared, archs, chosen)
    cached = store.has(_LIBRARIES, name)
    if not cached:
        tools = ready(store, chosen)
        compilation = _Compilation(store, declared, archs, chosen, tools)
        with ThreadPoolExecutor(jobs or jobs_at_once()) as pool:
            objects = list(pool.map(compilation.object, declared.sources))
        with store.writing(_LIBRARIES, name) as folder:
            linked = _link(folder, objects, tools)
            distribution.lay_out(folder, linked, declared, archs, chosen)
    folder = store.path(_LIBRARIES, name)
    facts = distribution.read(folder)
    library = folder / distribution.LIBRARY
    if (found := sha256_file(library)) != facts.sha256:
        raise CheckFailed(
            "a stored kernel library was changed",
            why=f"{library}: sha256 {found}, wanted {facts.sha256} ({distribution.FACTS} beside it)",
            do=f"rm -r {folder}  and build again",
        )
    seconds = time.monotonic() - begun
    return KernelLibrary(
        folder, library, facts.sha256, archs, platform, seconds, 0.0 if cached else _children_cpu() - cpu, cached
    )


def jobs_at_once() -> int:
    """Compilers at once that cores and free memory allow."""
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)), pages // _MEMORY_EACH))


@dataclass(frozen=True)
class _Compilation:
    """Sources of one folder, for one list of architectures, by one toolchain."""

    store: Store
    declared: Declaration
    archs: tuple[Arch, ...]
    chosen: Toolchain
    tools: ReadyTools

    def command(self, source: str, out: Path) -> list[str | Path]:
        """The command that compiles one source; to be run in the folder of the declaration."""
        tools = self.tools
        ours = ["-Iinclude", "-Icsrc"]
        if not source.endswith(".cu"):
            system = ["-isystem", str(tools.cuda / "include"), "-isystem", str(tools.tvm_ffi / "include")]
            away = f"-ffile-prefix-map={tools.cuda}=toolchain"  # __FILE__ of headers must not name our store
            return [tools.cxx, *_CXX, *ours, *system, away, f"-frandom-seed={source}", "-c", source, "-o", out]
        gencode = [flag for arch in self.archs for flag in arch.gencode()]
        # -I, since the compiler's own headers stand in -I too and must come after the target's; what only the
        # compiler has (fatbinary_section.h) is the same for every target, and nvcc looks for it under the target.
        cuda = [f"-I{tools.cuda / 'include'}", "-isystem", str(tools.cuda / "include" / "cccl")]
        own = f"-Xcompiler=-idirafter,{tools.nvcc.parent.parent / 'include'},-frandom-seed={source}"
        return [tools.nvcc, f"-ccbin={tools.cxx}", *_NVCC, *gencode, *ours, *cuda, own, "-c", source, "-o", out]

    def object(self, source: str) -> Path:
        """The object file of one source, from the store or compiled."""
        root, cuda = self.declared.root, source.endswith(".cu")
        name = key_of(
            source,
            root / source,
            _headers(root),
            [arch.text for arch in self.archs] if cuda else [],
            Path(__file__),
            self.chosen.identity,
        )
        if not self.store.has(_OBJECTS, name):
            with self.store.writing(_OBJECTS, name) as folder:
                scratch = folder / "tmp"
                scratch.mkdir()
                # A killed nvcc leaves its intermediate files; here they go with the half-written result.
                environment = {**os.environ, "TMPDIR": str(scratch), "LC_ALL": "C"}
                run(self.command(source, folder / "unit.o"), cwd=root, env=environment, do=f"edit {root / source}")
                remove(scratch)
        return self.store.path(_OBJECTS, name) / "unit.o"


def _link(folder: Path, objects: Sequence[Path], tools: ReadyTools) -> Path:
    out = folder / "linked.so"
    exports = folder / "exports.map"
    exports.write_bytes(_EXPORTS)
    names = [f"-Wl,--version-script={exports}", f"-Wl,-soname,{Path(distribution.LIBRARY).name}"]
    runtime = [str(tools.cuda / "lib" / "libcudart_static.a"), f"-L{tools.tvm_ffi / 'lib'}", "-ltvm_ffi"]
    run([tools.cxx, *_LINK, *names, "-o", out, *objects, *runtime, "-lpthread", "-ldl", "-lrt"])
    exports.unlink()
    return out


def _headers(root: Path) -> dict[str, Path]:
    found = [*root.glob("include/**/*"), *root.glob("csrc/**/*.h"), *root.glob("csrc/**/*.cuh")]
    return {str(path.relative_to(root)): path for path in sorted(found) if path.is_file()}


def _compatible(archs: Sequence[Arch]) -> tuple[Arch, ...]:
    ordered = tuple(sorted(set(archs)))
    if not ordered:
        raise BadInput("no architecture is named", do="--arch 12.1f")
    for one in ordered:
        for other in ordered:
            if one.capability == other.capability and (one.suffix, other.suffix) == ("", "f"):
                raise BadInput(
                    f"{one.text} and {other.text} cannot be compiled into one library",
                    why=f"nvcc names both sm_{one.sm}; code for the family runs wherever the plain one would",
                    do=f"--arch {other.text}",
                )
    return ordered


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
