"""What an ELF file says about itself: machine, needed libraries, versions of their symbols, what it exports.

Read here and not by readelf, since binutils need not be on the machine. Layout: ELF-64 Object File Format, and the
Linux Standard Base's chapter on symbol versioning for `.gnu.version_r`. Little-endian 64-bit files alone.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparkforge.core.errors import CheckFailed

CUDA = 190  # e_machine of a cubin
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")
_NEED = struct.Struct("<HHIII")
_NEED_ENTRY = struct.Struct("<IHHII")
_SHT_DYNAMIC, _SHT_DYNSYM, _SHT_VERNEED = 6, 11, 0x6FFFFFFE
_DT_NEEDED = 1
_LOCAL = 0  # st_info >> 4


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

    @property
    def glibc(self) -> tuple[int, ...]:
        """The newest glibc that it asks for, as (2, 34); empty if none."""
        asked = [re.fullmatch(r"GLIBC_([0-9.]+)", version) for version in self.versions]
        return max((tuple(int(part) for part in found[1].split(".")) for found in asked if found), default=())


def read_elf(path: Path) -> Elf:
    """Facts of an ELF file.

    Raises:
        CheckFailed: not there, or not a whole little-endian ELF-64 file.
    """
    try:
        return _read(path.read_bytes())
    except (OSError, ValueError, IndexError, struct.error) as bad:
        raise CheckFailed(f"{path.name} is not a whole ELF file", why=f"{path}: {bad}") from bad


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int
    count: int


def _read(data: bytes) -> Elf:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not ELF, 64-bit, little-endian")
    header = _HEADER.unpack_from(data)
    machine, table, entry_size, entries = header[2], header[6], header[11], header[12]
    sections = []
    for index in range(entries):
        raw = _SECTION.unpack_from(data, table + index * entry_size)
        sections.append(_Section(raw[1], raw[4], raw[5], raw[6], raw[7]))
    needed: list[str] = []
    versions: list[str] = []
    exports: list[str] = []
    for section in sections:
        if section.kind not in (_SHT_DYNAMIC, _SHT_DYNSYM, _SHT_VERNEED):
            continue
        strings = sections[section.link].offset
        if section.kind == _SHT_DYNAMIC:
            needed += [
                _text(data, strings + value) for tag, value in _each(_DYNAMIC, data, section) if tag == _DT_NEEDED
            ]
        elif section.kind == _SHT_DYNSYM:
            for name, info, _, defined, _, _ in _each(_SYMBOL, data, section):
                if defined and info >> 4 != _LOCAL:
                    exports.append(_text(data, strings + name))
        else:
            versions += [_text(data, strings + name) for name in _version_names(data, section)]
    return Elf(machine, tuple(needed), tuple(sorted(set(versions))), tuple(sorted(exports)))


def _each(layout: struct.Struct, data: bytes, section: _Section) -> Iterator[tuple[int, ...]]:
    if section.offset + section.size > len(data):
        raise ValueError("a section ends past the end of the file")
    return layout.iter_unpack(data[section.offset : section.offset + section.size // layout.size * layout.size])


def _version_names(data: bytes, section: _Section) -> Iterator[int]:
    at = section.offset
    for _ in range(section.count):
        _, entries, _, first, following = _NEED.unpack_from(data, at)
        entry = at + first
        for _ in range(entries):
            _, _, _, name, behind = _NEED_ENTRY.unpack_from(data, entry)
            yield name
            entry += behind
        at += following


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()
