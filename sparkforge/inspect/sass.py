"""Machine code of NVIDIA GPUs inside a library, as cuobjdump and nvdisasm show it.

Architectures are read from the fat binary's own headers: the cubin inside, and its name in `--list-elf`, say sm_121
for code of 12.1f and of plain 12.1 alike.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sparkforge.core.arch import Arch
from sparkforge.core.errors import CheckFailed
from sparkforge.core.proc import run

_NO_CODE = 255  # cuobjdump's status for a file without device code
_HEADING = re.compile(r"^Fatbin (elf|ptx) code:$")
_FAT_ARCH = re.compile(r"^arch = sm_([0-9]+)([0-9])([af]?)$")
_CUBIN_NAME = re.compile(r"\.sm_([0-9]+)[af]?\.")
_FUNCTION = re.compile(r"^\s*Function : (\S+)$")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[0-9T]+\s+)?([A-Z][A-Z0-9_.]*)")
_USAGE_OF = re.compile(r"^ Function (\S+):$")
_USAGE = re.compile(r"REG:([0-9]+) STACK:([0-9]+) SHARED:([0-9]+) LOCAL:([0-9]+)")
_BLOCK_SCALED = re.compile(r"(QMMA|OMMA)\.SF\b")
_MMA = re.compile(r"[A-Z]*(MMA)\b")
_TRAP = "BPT.TRAP"


@dataclass
class DeviceFunction:
    """Machine code of one kernel for one architecture.

    Attributes:
        arch: what it was compiled for.
        name: mangled.
        instructions: how many.
        mma: matrix instructions by opcode.
        traps: BPT.TRAP, which is what is left of an instruction that the target did not have.
        opcodes: all instructions, by the word before the first dot: UTMALDG, MEMBAR.
        registers: to a thread; 0 where unknown.
        stack: bytes to a thread.
        shared: static shared memory, bytes to a block.
        local: bytes to a thread, spills among them.
    """

    arch: Arch
    name: str
    instructions: int = 0
    mma: Counter[str] = field(default_factory=Counter)
    traps: int = 0
    opcodes: Counter[str] = field(default_factory=Counter)
    registers: int = 0
    stack: int = 0
    shared: int = 0
    local: int = 0

    @property
    def block_scaled(self) -> int:
        """Block-scaled matrix instructions: QMMA.SF and OMMA.SF."""
        return sum(count for opcode, count in self.mma.items() if _BLOCK_SCALED.match(opcode))

    @property
    def short(self) -> str:
        """Name for people: the last identifier, and its integer template arguments: kernel<8>."""
        at, last = 0, self.name
        while found := re.match(r"(?:_ZN?|St)?([0-9]+)", self.name[at:]):
            begin = at + found.end()
            at = begin + int(found[1])
            last = self.name[begin:at]
        arguments = re.match(r"I((?:L[a-z][0-9]+E)+)E", self.name[at:])
        numbers = ", ".join(re.findall(r"L[a-z]([0-9]+)E", arguments[1])) if arguments else ""
        return f"{last}<{numbers}>" if numbers else last

    def is_of(self, entry: str) -> bool:
        """Whether this is, or instantiates, the `__global__` function of that name (Itanium mangling)."""
        return self.name == entry or re.search(rf"(?<![0-9]){len(entry)}{re.escape(entry)}", self.name) is not None


@dataclass(frozen=True)
class DeviceCode:
    """All device code of a file.

    Attributes:
        archs: with machine code.
        ptx: with PTX, which a driver would compile at load.
        functions: in the order of the file.
    """

    archs: tuple[Arch, ...]
    ptx: tuple[Arch, ...]
    functions: tuple[DeviceFunction, ...]


def read_code(path: Path, inspector: Path) -> DeviceCode:
    """Device code of a shared library or object file.

    Args:
        path: the file.
        inspector: folder of cuobjdump and nvdisasm.

    Raises:
        CheckFailed: the file cannot be read, or its instructions cannot be.
    """
    ptx = {arch for kind, arch in _listed(path, inspector) if kind == "ptx"}
    with tempfile.TemporaryDirectory(prefix="sparkforge-cubins-") as folder:
        found = cubins(path, inspector, Path(folder))
        functions = tuple(one for arch, cubin in found for one in read_cubin(cubin, arch, inspector))
    return DeviceCode(tuple(sorted({arch for arch, _ in found})), tuple(sorted(ptx)), functions)


def cubins(path: Path, inspector: Path, folder: Path) -> list[tuple[Arch, Path]]:
    """Machine code of a library, taken apart into files: a large one cannot be disassembled in one go.

    Args:
        path: a shared library or object file.
        inspector: folder of cuobjdump and nvdisasm.
        folder: empty; the files are written there.

    Returns:
        Each file with the architecture that the library gives it. Only the library has a family's `f`; the file itself
        has lost it.

    Raises:
        CheckFailed: the file cannot be read, or holds code of two targets of one number, as 12.1 and 12.1f.
    """
    archs: dict[str, Arch] = {}
    for kind, arch in _listed(path, inspector):
        number = f"{arch.major}{arch.minor}"
        if kind == "elf" and archs.setdefault(number, arch) != arch:
            raise CheckFailed(
                f"{path.name} holds code of two targets that cannot be told apart",
                why=f"{arch.text} and {archs[number].text}",
            )
    if not archs:
        return []
    # cuobjdump writes into the folder that it runs in, so it needs an absolute path.
    _cuobjdump(path.absolute(), inspector, "-xelf", "all", cwd=folder)
    files = sorted(folder.glob("*.cubin"), key=lambda file: [int(part) for part in re.findall(r"[0-9]+", file.name)])
    return [(archs[_CUBIN_NAME.findall(file.name)[-1]], file) for file in files]


def read_cubin(cubin: Path, arch: Arch, inspector: Path) -> list[DeviceFunction]:
    """Functions of one file that `cubins` wrote.

    Raises:
        CheckFailed: it cannot be read, or the instructions of a function cannot be.
    """
    found: dict[str, DeviceFunction] = {}
    current: DeviceFunction | None = None
    for line in _cuobjdump(cubin, inspector, "-sass"):
        if name := _FUNCTION.match(line):
            current = found[name[1]] = DeviceFunction(arch, name[1])
        elif current and (one := _INSTRUCTION.match(line)):
            current.instructions += 1
            current.opcodes[one[1].partition(".")[0]] += 1
            if _MMA.match(one[1]):
                current.mma[one[1]] += 1
            current.traps += one[1].startswith(_TRAP)
    current = None
    for line in _cuobjdump(cubin, inspector, "-res-usage"):
        if name := _USAGE_OF.match(line):
            current = found.get(name[1])
        elif current and (one := _USAGE.search(line)):
            current.registers, current.stack, current.shared, current.local = (int(part) for part in one.groups())
    for function in found.values():
        if not function.instructions:
            raise CheckFailed(
                f"the instructions of {cubin.name} cannot be read", why=f"{function.name} for {arch.text}: none"
            )
    return list(found.values())


def _listed(path: Path, inspector: Path) -> Iterator[tuple[str, Arch]]:
    """What a library's fat binary holds: elf or ptx, and for which architecture."""
    kind = ""
    for line in _cuobjdump(path, inspector):
        if heading := _HEADING.match(line):
            kind = heading[1]
        elif kind and (found := _FAT_ARCH.match(line)):
            yield kind, Arch(int(found[1]), int(found[2]), found[3])


def _cuobjdump(path: Path, inspector: Path, *words: str, cwd: Path | None = None) -> list[str]:
    # cuobjdump runs the nvdisasm that it finds on PATH, and says nothing when there is none.
    environment = {**os.environ, "PATH": f"{inspector}:{os.environ.get('PATH', '')}"}
    done = run([inspector / "cuobjdump", *words, path], env=environment, accept=(0, _NO_CODE), cwd=cwd)
    if done.code == _NO_CODE and b"does not contain device code" not in done.out + done.err:
        raise CheckFailed(
            f"cuobjdump cannot read {path.name}", why=(done.err or done.out).decode(errors="replace").strip()
        )
    return [] if done.code else done.out.decode(errors="replace").splitlines()
