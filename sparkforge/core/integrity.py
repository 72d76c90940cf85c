"""Finds damage in the store before a result is used, at the cost of a few stats.

A result has a seal: the SHA-256 of each of its files. Git checks its own repository. Both are checked in full if a
file's size, time or inode changed since the last check, and otherwise trusted.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from sparkforge.core.errors import CheckFailed
from sparkforge.core.hashing import sha256_bytes, sha256_file
from sparkforge.core.store import write_file

SEAL = ".seal.json"
_STAMP = ".seal.stamp"


def seal(folder: Path) -> None:
    """Record the hash of every file of a finished result."""
    hashes = {str(file.relative_to(folder)): sha256_file(file) for file in files_below(folder)}
    (folder / SEAL).write_bytes(msgspec.json.encode(hashes))


def sound(folder: Path) -> bool:
    """Whether there is a sealed result, undamaged.

    Raises:
        CheckFailed: a file is not what was stored.
    """
    if not (folder / SEAL).is_file():
        return False
    stamp = folder.with_name(folder.name + _STAMP)
    now = stamp_of(files_below(folder))
    if stamp.is_file() and stamp.read_text() == now:
        return True
    wanted: dict[str, str] = msgspec.json.decode((folder / SEAL).read_bytes(), type=dict[str, str])
    found = {str(file.relative_to(folder)): sha256_file(file) for file in files_below(folder)}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise CheckFailed(
                f"a stored object is damaged: {name}",
                why=f"{folder / name}: sha256 {found.get(name, 'none')}, stored as {wanted.get(name, 'none')}",
                do=f"rm -r {folder}, then run again to make it anew",
            )
    write_file(stamp, now.encode())
    return True


def files_below(folder: Path) -> list[Path]:
    """Files below a folder, sorted, without bytecode and the seal."""
    found = []
    for below, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        found += [Path(below, name) for name in names if name != SEAL]
    return sorted(found)


def stamp_of(files: list[Path]) -> str:
    """Hash of names, sizes, times and inodes: cheap, and changed by any edit."""
    found = [(file, file.lstat()) for file in files]
    lines = [f"{file} {status.st_size} {status.st_mtime_ns} {status.st_ino}" for file, status in found]
    return sha256_bytes("\n".join(lines).encode())
