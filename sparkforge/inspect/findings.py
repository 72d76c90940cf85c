"""What an audit of compiled code finds, and the checks that every audit makes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

import msgspec

from sparkforge.core.errors import CheckFailed
from sparkforge.core.platforms import Platform
from sparkforge.inspect.elf import Elf

# Newest symbols of libstdc++ by the C library of a base: GCC 12 of Debian 12, GCC 14 of Ubuntu 24.04.
GLIBCXX = {"2_36": (3, 4, 30), "2_39": (3, 4, 33)}


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


def newest(versions: Iterable[str]) -> dict[str, str]:
    """Newest version of each family of symbols: {"GLIBC": "2.34", "GLIBCXX": "3.4.30"}."""
    found: dict[str, tuple[int, ...]] = {}
    for version in versions:
        family, _, number = version.rpartition("_")
        if family and re.fullmatch(r"[0-9.]+", number):
            found[family] = max(found.get(family, ()), _numbers(number))
    return {family: ".".join(map(str, number)) for family, number in sorted(found.items())}


def too_new(asks: Mapping[str, str], glibc: str) -> list[str]:
    """What a library asks of the C and C++ libraries that a base does not have, a sentence each.

    Args:
        asks: as `newest` gives it.
        glibc: of the base, as 2_36.
    """
    have = {"GLIBC": _numbers(glibc.replace("_", ".")), "GLIBCXX": GLIBCXX[glibc]}
    return [
        f"it asks for {family}_{asks[family]}; the base has {family}_{'.'.join(map(str, version))}"
        for family, version in have.items()
        if _numbers(asks.get(family, "0")) > version
    ]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def host_side(elf: Elf, platform: Platform, exports: Iterable[str]) -> Iterator[Finding]:
    """A library must be for the platform, and offer functions to TVM-FFI."""
    if elf.machine != platform.elf_machine:
        says = f"ELF machine {elf.machine}, {platform.oci} is {platform.elf_machine}"
        yield Finding("elf-machine", says, do=f"build for --platform {platform.oci}")
    for name in exports:
        if f"__tvm_ffi_{name}" not in elf.exports:
            yield Finding("export", f"__tvm_ffi_{name} is not exported")
