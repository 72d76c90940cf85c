"""The audit of our kernels: their machine code, against what was asked for and declared.

A compiler's status 0 proves nothing here: for plain 12.1 it drops a block-scaled MMA without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sparkforge.core.arch import SM12X, Arch
from sparkforge.core.platforms import Platform
from sparkforge.inputs.kernel_list import Kernel
from sparkforge.inspect.elf import Elf, read_elf
from sparkforge.inspect.findings import Finding, Severity, errors, host_side, newest, require, too_new
from sparkforge.inspect.sass import DeviceCode, DeviceFunction, read_code

COLUMNS = ("arch", "kernel", "registers", "stack", "shared", "instructions", "block-scaled MMA", "MMA", "traps")


@dataclass(frozen=True)
class KernelAudit:
    """A library's content and its findings.

    Attributes:
        library: the file.
        elf: what its host side says.
        code: its device code.
        findings: errors first.
    """

    library: Path
    elf: Elf
    code: DeviceCode
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether there is no error."""
        return not errors(self.findings)

    def require(self) -> None:
        """Raise if the audit failed.

        Raises:
            CheckFailed: names every error.
        """
        require(self.library.name, (("", one) for one in self.findings))

    def rows(self) -> list[tuple[object, ...]]:
        """A row for each function under `COLUMNS`, for people."""
        return [
            (
                *(each.arch.text, each.short, each.registers, each.stack + each.local, each.shared),
                *(each.instructions, each.block_scaled, sum(each.mma.values()), each.traps),
            )
            for each in self.code.functions
        ]

    def as_json(self) -> dict[str, Any]:
        """The report in plain values."""
        return {
            "library": str(self.library),
            "machine": self.elf.machine,
            "versions": newest(self.elf.versions),
            "needed": list(self.elf.needed),
            "archs": [arch.text for arch in self.code.archs],
            "ptx": [arch.text for arch in self.code.ptx],
            "functions": [_plain(function) for function in self.code.functions],
            "findings": msgspec.to_builtins(self.findings),
            "passed": self.passed,
        }


def audit(
    library: Path,
    *,
    archs: Sequence[Arch],
    platform: Platform,
    kernels: Mapping[str, Kernel],
    inspector: Path,
    glibc: str = "",
) -> KernelAudit:
    """Hold a library against what was asked for.

    Args:
        library: a shared library.
        archs: it must hold machine code for each.
        platform: machine that it must be for.
        kernels: what is declared of its kernels, by name; may be empty for a library that is not ours.
        inspector: folder of cuobjdump and nvdisasm.
        glibc: C library of the base that it must load in, as 2_36; empty asks for none.

    Raises:
        CheckFailed: the file cannot be read at all. What is wrong with its content is in the report.
    """
    elf, code = read_elf(library), read_code(library, inspector)
    exports = [name for kernel in kernels.values() for name in kernel.exports]
    found = [*host_side(elf, platform, exports), *_archs(code, archs)]
    if glibc:
        do = "build on a distribution that is not newer than the image's base"
        found += [Finding("glibc", says, do=do) for says in too_new(newest(elf.versions), glibc)]
    for name, kernel in kernels.items():
        for arch in archs:
            if kernel.wants(arch) and arch in code.archs:
                found += _kernel(name, kernel, arch, code)
    found += _traps(code)
    order = list(Severity)
    return KernelAudit(library, elf, code, tuple(sorted(found, key=lambda item: order.index(item.severity))))


def _archs(code: DeviceCode, archs: Sequence[Arch]) -> Iterator[Finding]:
    for arch in archs:
        if arch not in code.archs:
            has = ", ".join(each.text for each in code.archs) or "none"
            says = f"no machine code for {arch.text}; there is code for: {has}"
            yield Finding("arch", says, do=f"invoke kernels.build --arch {arch.text}")
    for arch in code.archs:
        if arch not in archs:
            yield Finding("arch-unasked", f"machine code for {arch.text}, which was not asked for", Severity.NOTE)
    for arch in code.ptx:
        yield Finding("ptx", f"PTX for {arch.text}: another chip's driver would compile it at load", Severity.NOTE)


def _kernel(name: str, kernel: Kernel, arch: Arch, code: DeviceCode) -> Iterator[Finding]:
    functions = [each for each in code.functions if each.arch == arch and each.is_of(kernel.entry)]
    if not functions:
        yield Finding("entry", f"{name}: no {kernel.entry} in the code for {arch.text}")
    for function in functions:
        which = f"{name}: {function.name} for {arch.text}"
        # Other generations run the software twin.
        if kernel.mma == "block_scaled" and arch.major == SM12X and not function.block_scaled:
            do = f"look at the guards of {kernel.entry}" if arch.suffix else f"--arch {arch.major}.{arch.minor}f"
            yield Finding("block-scaled-mma", f"{which} holds no block-scaled MMA (QMMA.SF, OMMA.SF)", do=do)
        if used := function.local + function.stack:
            yield Finding("local-memory", f"{which} uses {used} bytes of stack a thread", Severity.WARNING)


def _traps(code: DeviceCode) -> Iterator[Finding]:
    for function in code.functions:
        if function.traps:
            says = f"{function.name} for {function.arch.text}: {function.traps} BPT.TRAP in {function.instructions}"
            do = "an instruction was guarded away for this target: build for the family, 12.1f"
            yield Finding("trap", f"{says} instructions", Severity.WARNING, do)


def _plain(function: DeviceFunction) -> dict[str, Any]:
    numbers = ("instructions", "block_scaled", "traps", "registers", "stack", "shared", "local")
    return {
        "arch": function.arch.text,
        "name": function.name,
        "mma": dict(function.mma),
        **{name: getattr(function, name) for name in numbers},
    }
