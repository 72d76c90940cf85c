"""The smallest build that shows that an engine works: one `RUN` with a mount, from an empty image.

Versions say little: a newer client without its build plugin, a daemon whose store cannot mount, a machine that forbids
namespaces all look fine until a build begins. So an engine builds this. It needs no base image and no network: its one
program is written here, byte by byte. It opens a file of the mounted directory; its status is 0 if it could, else 1.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

from sparkforge.core.errors import SparkforgeError
from sparkforge.core.platforms import ARM64, Platform

TAG = "localhost/sparkforge/proof:1"
DOCKERFILE = """\
FROM scratch
COPY look /look
RUN --mount=type=bind,source=mounted,target=/mounted ["/look"]
"""

_FILE = b"/mounted/word\0"
_BASE = 0x400000
_HEADERS = 64 + 56

# Opens the file, then exits with the sign of the result.
_AMD64 = bytes.fromhex(
    "b802000000"  # mov eax, 2 (open)
    "488d3d12000000"  # lea rdi, [rip + 18], the path behind the code
    "31f6"  # xor esi, esi
    "31d2"  # xor edx, edx
    "0f05"  # syscall
    "89c7"  # mov edi, eax
    "c1ef1f"  # shr edi, 31: the sign
    "b83c000000"  # mov eax, 60 (exit)
    "0f05"  # syscall
)
# The same, as openat(-100, ...): arm64 has no open.
_ARM64 = struct.pack(
    "<8I",
    0x92800C60,  # mov x0, -100 (AT_FDCWD)
    0x100000E1,  # adr x1, . + 28, the path behind the code
    0xD2800002,  # mov x2, 0
    0xD2800708,  # mov x8, 56 (openat)
    0xD4000001,  # svc 0
    0x531F7C00,  # lsr w0, w0, 31: the sign
    0xD2800BA8,  # mov x8, 93 (exit)
    0xD4000001,  # svc 0
)


def look(platform: Platform) -> bytes:
    """The program, as a static ELF file of one segment (ELF-64, System V ABI, figures 4-3 and 5-1)."""
    code = (_ARM64 if platform == ARM64 else _AMD64) + _FILE
    size = _HEADERS + len(code)
    ident = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    header = struct.pack("<HHIQQQIHHHHHH", 2, platform.elf_machine, 1, _BASE + _HEADERS, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return ident + header + segment + code


def lay(folder: Path, platform: Platform) -> None:
    """Write the proof's build context."""
    (folder / "Dockerfile").write_text(DOCKERFILE)
    (folder / "mounted").mkdir()
    (folder / "mounted" / "word").write_text("able\n")
    program = folder / "look"
    program.write_bytes(look(platform))
    program.chmod(0o755)


def attempt(build: Callable[[Path], object]) -> str:
    """Let an engine build the proof; why it cannot in one line, empty if it can."""
    with tempfile.TemporaryDirectory(prefix="sparkforge-proof-") as name:
        folder = Path(name)
        lay(folder, Platform.host())
        try:
            build(folder)
        except SparkforgeError as refused:
            return last_line(refused.why or refused.what)
    return ""


def last_line(text: str) -> str:
    """The most useful line of a program's output: the first that names an error, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines[1:] if "error" in line.lower() or "cannot" in line.lower()]
    return (errors or lines or ["it said nothing"])[0 if errors else -1]
