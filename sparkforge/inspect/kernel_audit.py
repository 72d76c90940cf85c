"""The audit of compiled kernels: what is in the machine code, against what was asked for and declared.

A compiler's status 0 proves nothing here: for plain 12.1 it drops a block-scaled MMA without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from sparkforge.core.arch import Arch
from sparkforge.core.errors import CheckFailed
from sparkforge.core.platforms import Platform
from sparkforge.inputs.kernel_list import Kernel
from sparkforge.inspect.elf import Elf, read_elf
from sparkforge.inspect.sass import Code, Function, read_code

COLUMNS = ("arch", "kernel", "registers", "stack", "shared", "instructions", "block-scaled MMA", "MMA", "traps")
_BLOCK_SCALED_MAJOR = 12  # the generation whose code must hold QMMA/OMMA; others run the software twin


class Severity(Enum):
    """How much a finding weighs."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One thing that the audit saw.

    Attributes:
        severity: an ERROR fails the audit.
        rule: short name of the check, stable.
        says: one line.
        do: the remedy; may be empty.
    """

    severity: Severity
    rule: str
    says: str
    do: str = ""


@dataclass(frozen=True)
class AuditReport:
    """What one library holds, and what is wrong with it.

    Attributes:
        library: the file.
        elf: what its host side says.
        code: its device code.
        findings: errors first.
    """

    library: Path
    elf: Elf
    code: Code
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether there is no error."""
        return not any(finding.severity is Severity.ERROR for finding in self.findings)

    def require(self) -> None:
        """Raise if the audit failed.

        Raises:
            CheckFailed: names every error.
        """
        errors = [finding for finding in self.findings if finding.severity is Severity.ERROR]
        if errors:
            raise CheckFailed(
                f"{self.library.name} did not pass the audit",
                why="; ".join(f"{finding.rule}: {finding.says}" for finding in errors),
                do=next((finding.do for finding in errors if finding.do), ""),
            )

    def rows(self) -> list[tuple[str, ...]]:
        """One row a function under `COLUMNS`, for people."""
        return [
            (
                *(each.arch.text, each.short, str(each.registers), str(each.stack + each.local), str(each.shared)),
                *(str(each.instructions), str(each.block_scaled), str(sum(each.mma.values())), str(each.traps)),
            )
            for each in self.code.functions
        ]

    def as_json(self) -> dict[str, Any]:
        """The report in plain values."""
        return {
            "library": str(self.library),
            "machine": self.elf.machine,
            "glibc": ".".join(str(part) for part in self.elf.glibc),
            "needed": list(self.elf.needed),
            "archs": [arch.text for arch in self.code.archs],
            "ptx": [arch.text for arch in self.code.ptx],
            "functions": [_plain(function) for function in self.code.functions],
            "findings": [
                {"severity": item.severity.value, "rule": item.rule, "says": item.says, "do": item.do}
                for item in self.findings
            ],
            "passed": self.passed,
        }


def audit(
    library: Path,
    *,
    archs: Sequence[Arch],
    platform: Platform,
    kernels: dict[str, Kernel],
    inspector: Path,
    glibc: str = "",
) -> AuditReport:
    """Hold a library against what was asked for.

    Args:
        library: a shared library.
        archs: it must hold machine code for each.
        platform: machine that it must be for.
        kernels: what is declared of its kernels, by name; may be empty for a library that is not ours.
        inspector: folder of cuobjdump and nvdisasm.
        glibc: the oldest C library that it must load with, as 2.36; empty asks for none.

    Raises:
        CheckFailed: the file cannot be read at all. What is wrong with its content is in the report.
    """
    elf, code = read_elf(library), read_code(library, inspector)
    found = [*_host(elf, platform, kernels, glibc), *_archs(code, archs)]
    for name, kernel in kernels.items():
        for arch in archs:
            if kernel.wants(arch) and arch in code.archs:
                found += _kernel(name, kernel, arch, code)
    found += _traps(code)
    order = list(Severity)
    return AuditReport(library, elf, code, tuple(sorted(found, key=lambda item: order.index(item.severity))))


def _host(elf: Elf, platform: Platform, kernels: dict[str, Kernel], glibc: str) -> Iterator[Finding]:
    if elf.machine != platform.elf_machine:
        says = f"ELF machine {elf.machine}, {platform.oci} is {platform.elf_machine}"
        yield Finding(Severity.ERROR, "elf-machine", says, f"invoke kernels.build --platform {platform.oci}")
    newest = tuple(int(part) for part in glibc.split(".")) if glibc else ()
    if newest and elf.glibc > newest:
        says = f"it asks for glibc {'.'.join(map(str, elf.glibc))}, the image has {glibc}"
        yield Finding(Severity.ERROR, "glibc", says, "build on a distribution that is not newer than the image's base")
    for name, kernel in kernels.items():
        for export in kernel.exports:
            if f"__tvm_ffi_{export}" not in elf.exports:
                yield Finding(Severity.ERROR, "export", f"{name}: __tvm_ffi_{export} is not exported")


def _archs(code: Code, archs: Sequence[Arch]) -> Iterator[Finding]:
    for arch in archs:
        if arch not in code.archs:
            has = ", ".join(each.text for each in code.archs) or "none"
            says = f"no machine code for {arch.text}; there is code for: {has}"
            yield Finding(Severity.ERROR, "arch", says, f"invoke kernels.build --arch {arch.text}")
    for arch in code.archs:
        if arch not in archs:
            yield Finding(Severity.NOTE, "arch-unasked", f"machine code for {arch.text}, which was not asked for")
    for arch in code.ptx:
        yield Finding(Severity.NOTE, "ptx", f"PTX for {arch.text}: another chip's driver would compile it at load")


def _kernel(name: str, kernel: Kernel, arch: Arch, code: Code) -> Iterator[Finding]:
    functions = [each for each in code.functions if each.arch == arch and each.is_of(kernel.entry)]
    if not functions:
        yield Finding(Severity.ERROR, "entry", f"{name}: no {kernel.entry} in the code for {arch.text}")
    if kernel.mma == "block_scaled" and arch.major == _BLOCK_SCALED_MAJOR:
        for function in functions:
            if not function.block_scaled:
                says = f"{name}: {function.name} for {arch.text} holds no block-scaled MMA (QMMA.SF, OMMA.SF)"
                do = (
                    f"--arch {arch.major}.{arch.minor}f" if not arch.suffix else f"look at the guards of {kernel.entry}"
                )
                yield Finding(Severity.ERROR, "block-scaled-mma", says, do)
    for function in functions:
        if used := function.local + function.stack:
            says = f"{name}: {function.name} for {arch.text} uses {used} bytes of stack a thread"
            yield Finding(Severity.WARNING, "local-memory", says)


def _traps(code: Code) -> Iterator[Finding]:
    for function in code.functions:
        if function.traps:
            says = f"{function.name} for {function.arch.text}: {function.traps} BPT.TRAP in {function.instructions}"
            do = "an instruction was guarded away for this target: build for the family, 12.1f"
            yield Finding(Severity.WARNING, "trap", f"{says} instructions", do)


def _plain(function: Function) -> dict[str, Any]:
    return {
        "arch": function.arch.text,
        "name": function.name,
        "instructions": function.instructions,
        "mma": dict(function.mma),
        "block_scaled": function.block_scaled,
        "traps": function.traps,
        "registers": function.registers,
        "stack": function.stack,
        "shared": function.shared,
        "local": function.local,
    }
