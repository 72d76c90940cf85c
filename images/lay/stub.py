"""A library to link against where the real one is not there: libcuda.so, which comes with the driver.

The wheels of the CUDA toolkit carry no stub of it, and an image has no driver before it runs, yet what FlashInfer
compiles is always linked with `-lcuda`. This writes a shared object for any platform that names the driver's
functions and does nothing: the linker notes that `libcuda.so.1` is needed, and the real one is loaded at run time.
Layout: System V ABI, chapter 4 (object files) and 5 (dynamic linking), 64 bit, little endian.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from pathlib import Path

MACHINES = {"x86_64-linux-gnu": 62, "aarch64-linux-gnu": 183}  # e_machine
_FUNCTION = re.compile(r"^\s*(?:CUresult|const char \*)\s*CUDAAPI\s+(cu[A-Za-z0-9_]+)\s*\(", re.MULTILINE)
_RENAMED = re.compile(r"^\s*#\s*define\s+(cu[A-Za-z0-9_]+)\s+(cu[A-Za-z0-9_]+_v[0-9]+)\s*$", re.MULTILINE)
_HEADER, _SEGMENT, _SECTION, _SYMBOL = 64, 56, 64, 24


def functions(header: str) -> list[str]:
    """Names that cuda.h declares, and those that it gives them by macros: `cuMemAlloc` is `cuMemAlloc_v2`."""
    found = set(_FUNCTION.findall(header))
    found |= {new for old, new in _RENAMED.findall(header) if old in found}
    return sorted(found)


def write(path: Path, triple: str, soname: str, names: Sequence[str]) -> None:
    """Write a shared object for a platform that defines functions by name."""
    strings = bytearray(b"\0")

    def string(text: str) -> int:
        strings.extend(text.encode() + b"\0")
        return len(strings) - len(text) - 1

    named = string(soname)
    places = [string(name) for name in names]
    # Sections in the order of the file: text, dynamic symbols, their strings, hash, dynamic, names of sections.
    text_at = _HEADER + 2 * _SEGMENT
    text = bytes(16)
    symbols_at = text_at + len(text)
    symbols = bytes(_SYMBOL) + b"".join(struct.pack("<IBBHQQ", place, 0x12, 0, 1, text_at, 0) for place in places)
    strings_at = symbols_at + len(symbols)
    hash_at = _aligned(strings_at + len(strings))
    count = len(names) + 1
    # One bucket: all symbols in one chain. Nothing ever looks a name up here but the linker, which reads the table.
    chains = [*range(2, count), 0] if names else []
    hashes = struct.pack(f"<III{count}I", 1, count, 1 if names else 0, 0, *chains)
    dynamic_at = _aligned(hash_at + len(hashes))
    tags = [(14, named), (4, hash_at), (5, strings_at), (6, symbols_at), (10, len(strings)), (11, _SYMBOL), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *tag) for tag in tags)
    titles = b"\0.text\0.dynsym\0.dynstr\0.hash\0.dynamic\0.shstrtab\0"
    titles_at = dynamic_at + len(dynamic)
    sections_at = _aligned(titles_at + len(titles))
    # name, type, flags, address, offset, size, link, info, alignment, size of an entry
    sections = [
        (".text", 1, 6, text_at, len(text), 0, 0, 16, 0),
        (".dynsym", 11, 2, symbols_at, len(symbols), 3, 1, 8, _SYMBOL),
        (".dynstr", 3, 2, strings_at, len(strings), 0, 0, 1, 0),
        (".hash", 5, 2, hash_at, len(hashes), 2, 0, 8, 4),
        (".dynamic", 6, 3, dynamic_at, len(dynamic), 3, 0, 8, 16),
        (".shstrtab", 3, 0, titles_at, len(titles), 0, 0, 1, 0),
    ]
    table = bytes(_SECTION) + b"".join(
        struct.pack("<IIQQQQIIQQ", titles.index(name.encode() + b"\0"), kind, flags, at if flags else 0, at, *rest)
        for name, kind, flags, at, *rest in sections
    )
    ident = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    numbers = (3, MACHINES[triple], 1, 0, _HEADER, sections_at, 0, _HEADER, _SEGMENT, 2, _SECTION, 7, 6)
    header = ident + struct.pack("<HHIQQQIHHHHHH", *numbers)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, titles_at, titles_at, 0x10000)
    linking = struct.pack("<IIQQQQQQ", 2, 4, *(dynamic_at,) * 3, len(dynamic), len(dynamic), 8)
    parts = [(0, header + load + linking), (text_at, text), (symbols_at, symbols), (strings_at, bytes(strings))]
    parts += [(hash_at, hashes), (dynamic_at, dynamic), (titles_at, titles), (sections_at, table)]
    image = bytearray(sections_at + len(table))
    for at, part in parts:
        image[at : at + len(part)] = part
    path.write_bytes(image)


def _aligned(offset: int) -> int:
    return (offset + 7) & ~7
