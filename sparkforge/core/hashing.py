"""Hashes of files, of everything that a step reads, and checks of files against the hash in a recipe."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from sparkforge.core.errors import CheckFailed

Part: TypeAlias = "str | int | bool | float | bytes | Path | Mapping[str, Part] | Sequence[Part] | None"

_STAMP_SUFFIX = ".verified"


def sha256_bytes(data: bytes) -> str:
    """SHA-256 of bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_tree(path: Path) -> str:
    """SHA-256 over every file below a directory: name, executable bit, content; a link counts as a link."""
    total = hashlib.sha256()
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            file = Path(folder, name)
            if file.is_symlink():
                kind, content = b"l", sha256_bytes(os.fsencode(file.readlink()))
            else:
                kind, content = (b"x" if os.access(file, os.X_OK) else b"f"), sha256_file(file)
            total.update(os.fsencode(file.relative_to(path)) + b"\0" + kind + content.encode() + b"\n")
    return total.hexdigest()


def key_of(*parts: Part) -> str:
    """Hash of everything that a step reads; a Path counts with its content, not its name.

    Raises:
        CheckFailed: a path does not exist.
    """
    return sha256_bytes(json.dumps([_plain(part) for part in parts], sort_keys=True).encode())


def _plain(part: Part) -> object:
    if isinstance(part, Path):
        if part.is_dir():
            return {"tree": sha256_tree(part)}
        if part.is_file():
            return {"file": sha256_file(part)}
        raise CheckFailed("an input of this step does not exist", why=str(part))
    if isinstance(part, bytes):
        return {"bytes": sha256_bytes(part)}
    if isinstance(part, Mapping):
        return {name: _plain(value) for name, value in part.items()}
    if isinstance(part, str | int | float) or part is None:
        return part
    return [_plain(value) for value in part]


def verify_file(path: Path, sha256: str, *, where: str, do: str = "") -> None:
    """Check a file against the hash in a recipe.

    A verified file gets a stamp beside it (size, mtime in ns, inode, hash), so that the next check costs one stat.

    Args:
        path: the file.
        sha256: hex digest that it must have.
        where: the recipe line with the hash, for the error.
        do: the remedy.

    Raises:
        CheckFailed: the hash differs; names the file, both hashes and the recipe line.
    """
    status = path.stat()
    seen = f"{status.st_size} {status.st_mtime_ns} {status.st_ino} {sha256}"
    stamp = path.with_name(path.name + _STAMP_SUFFIX)
    if stamp.is_file() and stamp.read_text() == seen:
        return
    found = sha256_file(path)
    if found != sha256:
        stamp.unlink(missing_ok=True)
        raise CheckFailed(
            f"{path.name} is not the pinned file",
            why=f"{path}: sha256 {found}, wanted {sha256} ({where})",
            do=do or f"rm {path}, then run again to fetch it anew",
        )
    try:
        beside = stamp.with_name(f"{stamp.name}.{os.getpid()}")
        beside.write_text(seen)
        beside.replace(stamp)
    except OSError:  # in a read-only store every check hashes
        return
