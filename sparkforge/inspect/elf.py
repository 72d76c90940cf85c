"""What an ELF file says about itself: machine, needed libraries, versions of their symbols, what it exports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparkforge.core.errors import CheckFailed


@dataclass(frozen=True)
class Elf:
    """One ELF file.

    Attributes:
        machine: e_machine: 62 x86-64, 183 aarch64, 190 CUDA.
        needed: sonames that it asks for.
        versions: symbol versions that it asks for, as GLIBC_2.34.
        exports: names that it defines for others.
    """

    machine: int
    needed: tuple[str, ...]
    versions: tuple[str, ...]
    exports: tuple[str, ...]


def read_elf(path: Path) -> Elf:
    """Facts of an ELF file.

    Raises:
        CheckFailed: not there, or not a whole little-endian ELF-64 file.
    """
    from elftools.common.exceptions import ELFError  # noqa: PLC0415  a build that looks at no library does not pay

    try:
        return _read(path)
    except (OSError, ELFError, ValueError) as bad:
        raise CheckFailed(f"{path.name} is not a whole ELF file", why=f"{path}: {bad}") from bad


def _read(path: Path) -> Elf:
    from elftools.elf.dynamic import DynamicSection  # noqa: PLC0415  as above
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415
    from elftools.elf.enums import ENUM_E_MACHINE  # noqa: PLC0415
    from elftools.elf.gnuversions import GNUVerNeedSection  # noqa: PLC0415
    from elftools.elf.sections import SymbolTableSection  # noqa: PLC0415

    with path.open("rb") as file:
        elf = ELFFile(file)
        if elf.elfclass != 64 or not elf.little_endian:  # noqa: PLR2004  bits
            raise ValueError("not 64-bit and little-endian")
        if elf["e_shoff"] + elf["e_shnum"] * elf["e_shentsize"] > path.stat().st_size:
            raise ValueError("its table of sections ends past the end of the file")
        needed: list[str] = []
        versions: set[str] = set()
        exports: list[str] = []
        for section in elf.iter_sections():
            if isinstance(section, DynamicSection):
                needed += [tag.needed for tag in section.iter_tags("DT_NEEDED")]  # type: ignore[attr-defined]
            elif isinstance(section, GNUVerNeedSection):
                versions |= {one.name for _, asked in section.iter_versions() for one in asked}
            elif isinstance(section, SymbolTableSection) and section["sh_type"] == "SHT_DYNSYM":
                exports += [
                    one.name
                    for one in section.iter_symbols()
                    if one["st_shndx"] != "SHN_UNDEF" and one["st_info"]["bind"] != "STB_LOCAL"
                ]
        machine = elf["e_machine"]
        number = ENUM_E_MACHINE.get(machine, machine)
    return Elf(int(number), tuple(needed), tuple(sorted(versions)), tuple(sorted(exports)))
