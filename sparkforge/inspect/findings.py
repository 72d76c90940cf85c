"""What an audit of compiled code finds, and the checks that every audit makes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum

import msgspec

from sparkforge.core.errors import CheckFailed
from sparkforge.core.platforms import Platform
from sparkforge.inspect.elf import Elf


class Severity(Enum):
    """How much a finding weighs, the heaviest first."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Finding(msgspec.Struct, frozen=True):
    """One thing that an audit saw.

    Attributes:
        rule: short name of the check, stable.
        says: one line.
        severity: an ERROR fails the audit.
        do: the remedy; may be empty.
    """

    rule: str
    says: str
    severity: Severity = Severity.ERROR
    do: str = ""


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Those that fail an audit."""
    return [one for one in findings if one.severity is Severity.ERROR]


def require(what: str, findings: Iterable[tuple[str, Finding]], *, do: str = "") -> None:
    """Raise if there is an error among findings.

    Args:
        what: that was audited.
        findings: each with the place that it is about; may be empty.
        do: the remedy where no finding names one.

    Raises:
        CheckFailed: names every error.
    """
    wrong = [(place, one) for place, one in findings if one.severity is Severity.ERROR]
    if wrong:
        raise CheckFailed(
            f"{what} did not pass the audit",
            why="\n       ".join(f"{place}: [{one.rule}] {one.says}".removeprefix(": ") for place, one in wrong),
            do=next((one.do for _, one in wrong if one.do), do),
        )


def host_side(elf: Elf, platform: Platform, exports: Iterable[str]) -> Iterator[Finding]:
    """A library must be for the platform, and offer functions to TVM-FFI."""
    if elf.machine != platform.elf_machine:
        says = f"ELF machine {elf.machine}, {platform.oci} is {platform.elf_machine}"
        yield Finding("elf-machine", says, do=f"build for --platform {platform.oci}")
    for name in exports:
        if f"__tvm_ffi_{name}" not in elf.exports:
            yield Finding("export", f"__tvm_ffi_{name} is not exported")
