"""Objects of FlashInfer's modules, each in the store under the hash of everything that it was made from.

What a source includes is known only after it was compiled. So there are two levels, as in ccache's direct mode: under
a *command* (source, words, toolchain, platform) stand *records*, each a list of the files that one compilation read,
with their hashes, and the key of its object. An object is reused where every file of one record is unchanged; then
it does not matter what else changed in the tree. Files of the tree are named below the root, the toolchain's
are part of its identity and left out; the host's own headers (libc, libstdc++) stand by their path and content.

A file that is added can change what an `#include` finds without any file of a record changing. So a record also holds
its *rivals*: every file of the tree that has the name of a header that was read, or of one of the toolchain's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sparkforge.aot import build_files
from sparkforge.aot.plan import CompileUnit
from sparkforge.aot.tools import ModuleTools
from sparkforge.core import proc
from sparkforge.core.hashing import key_of, sha256_file
from sparkforge.core.integrity import seal, sound
from sparkforge.core.store import Store, remove, write_file

OBJECTS = "aot-objects"
RECORDS = "aot-records"
_FORMAT = 2


class CompileRecord(msgspec.Struct, frozen=True):
    """One compilation.

    Attributes:
        object: key of what came out.
        reads: {path: sha256} of what was read.
        rivals: hash of the paths of the tree that could have been found instead.
    """

    object: str
    reads: dict[str, str]
    rivals: str = ""


class CompileCost(msgspec.Struct, frozen=True):
    """What an object cost when it was compiled.

    Attributes:
        seconds: wall time.
        cpu_seconds: user and system time of the compiler and its parts.
        peak_bytes: largest resident size of any of them.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class CompiledObject:
    """One object.

    Attributes:
        unit: what it was compiled from.
        key: under which it is stored.
        path: of the object file.
        reads: files of the tree that it was made from, with their hashes.
        cost: of compiling it, now or then.
        cached: it was in the store.
    """

    unit: CompileUnit
    key: str
    path: Path
    reads: dict[str, str]
    cost: CompileCost
    cached: bool


@dataclass
class RootHashes:
    """SHA-256 of the files of a root, each computed once."""

    root: Path
    known: dict[str, str] = field(default_factory=dict)

    def of(self, name: str) -> str:
        """Hash of a file, by its path below the root or by its absolute one; "" where there is none."""
        if name not in self.known:
            path = self.root / name
            self.known[name] = sha256_file(path) if path.is_file() else ""
        return self.known[name]


@dataclass(frozen=True)
class RootNames:
    """What is where, by the last part of its path.

    Attributes:
        named: paths below the root that an include could name, of FlashInfer's and what it generated.
        toolchain: names of the toolchain's headers.
    """

    named: dict[str, list[str]]
    toolchain: frozenset[str]

    @classmethod
    def of(cls, root: Path, tools: ModuleTools) -> RootNames:
        """Look below a root, and at a toolchain."""
        named: dict[str, list[str]] = {}
        for above in ("flashinfer/data", "generated"):
            for folder, _, names in os.walk(root / above):
                for name in names:
                    named.setdefault(name, []).append(str(Path(folder, name).relative_to(root)))
        headers = (tools.cuda / "include", tools.more / "include", tools.tvm_ffi / "include")
        return cls(named, frozenset(name for one in headers for _, _, names in os.walk(one) for name in names))


@dataclass(frozen=True)
class Objects:
    """The objects of one root and toolchain."""

    store: Store
    tools: ModuleTools
    root: Path
    hashes: RootHashes
    names: RootNames

    def find(self, unit: CompileUnit) -> CompiledObject | None:
        """The object of a unit if the store has one made from just these files.

        Raises:
            CheckFailed: the store's object was changed.
        """
        for file in sorted((self.store.root / RECORDS / self._command(unit)).glob("*.json")):
            record = msgspec.json.decode(file.read_bytes(), type=CompileRecord)
            if any(self.hashes.of(name) != sha256 for name, sha256 in record.reads.items()):
                continue
            if record.rivals == self.rivals(record.reads) and sound(self.store.path(OBJECTS, record.object)):
                return self._object(unit, record, cached=True)
        return None

    def make(self, unit: CompileUnit) -> CompiledObject:
        """Compile a unit and store its object.

        Args:
            unit: what to compile; nobody else compiles it in this root.

        Raises:
            CheckFailed: it does not compile.
        """
        place = self.root / "out" / self._command(unit)[:16]
        out = place / "unit.o"
        # A killed nvcc leaves its intermediate files; here they go with the folder.
        scratch = place / "tmp"
        scratch.mkdir(parents=True)
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "TMPDIR": str(scratch), "HOME": str(scratch)}
        command = unit.command(self.tools, str(out.relative_to(self.root)))
        used = proc.measured(command, cwd=self.root, env=environment)
        read = build_files.dependencies(Path(f"{out}.d").read_text())
        reads = {name: self.hashes.of(name) for name in sorted(map(self._named, read)) if name}
        key = key_of(self._command(unit), reads)
        cost = CompileCost(round(used.seconds, 3), round(used.cpu_seconds, 3), used.peak_bytes)
        with self.store.writing(OBJECTS, key) as folder:
            out.rename(folder / "unit.o")
            (folder / "cost.json").write_bytes(msgspec.json.encode(cost))
            seal(folder)
        remove(place)
        record = CompileRecord(key, reads, self.rivals(reads))
        name = f"{key_of(key, record.rivals)}.json"
        write_file(self.store.root / RECORDS / self._command(unit) / name, msgspec.json.encode(record))
        return self._object(unit, record, cached=False)

    def rivals(self, reads: Iterable[str]) -> str:
        """Hash of the paths of the tree with the name of a file that was read, or of a header of the toolchain."""
        names = self.names.toolchain.union(path.rpartition("/")[2] for path in reads)
        return key_of(sorted(path for name in names for path in self.names.named.get(name, ())))

    def last_peak(self, unit: CompileUnit) -> int | None:
        """Most memory that any earlier compilation of this command took; None where there was none."""
        peaks = []
        for file in (self.store.root / RECORDS / self._command(unit)).glob("*.json"):
            record = msgspec.json.decode(file.read_bytes(), type=CompileRecord)
            cost = self.store.path(OBJECTS, record.object) / "cost.json"
            if cost.is_file():
                peaks.append(msgspec.json.decode(cost.read_bytes(), type=CompileCost).peak_bytes)
        return max(peaks, default=None)

    def _command(self, unit: CompileUnit) -> str:
        return key_of(_FORMAT, unit.source, list(unit.words), unit.cuda, self.tools.identity)

    def _object(self, unit: CompileUnit, record: CompileRecord, *, cached: bool) -> CompiledObject:
        folder = self.store.path(OBJECTS, record.object)
        cost = msgspec.json.decode((folder / "cost.json").read_bytes(), type=CompileCost)
        return CompiledObject(unit, record.object, folder / "unit.o", record.reads, cost, cached)

    def _named(self, path: str) -> str:
        """Name of a file that was read, for a record; "" for the toolchain's, whose identity stands for it."""
        if not path.startswith("/"):
            name = os.path.normpath(path)
            return "" if name.startswith(("cuda/", "more/", "tvm_ffi/", "compiler/")) else name
        for folder in (self.tools.nvcc.parent.parent, self.tools.cuda, self.tools.more, self.tools.tvm_ffi):
            if path.startswith(f"{folder}/"):
                return ""
        return os.path.normpath(path).removeprefix(f"{self.root}/")
