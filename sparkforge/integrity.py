"""Is what the store holds still what was stored? Looked at before it is used, at the cost of a few stats.

Results carry a seal (the SHA-256 of each of their files); the git repository is its own seal. Both are checked in
full when a file's size, time or inode changed since the last look, and taken as they were when not.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from sparkforge.errors import CheckFailed
from sparkforge.git import Git
from sparkforge.hashing import sha256_bytes, sha256_file
from sparkforge.store import Store, write_file

SEAL = ".seal.json"
_STAMP = ".seal.stamp"


def seal(folder: Path) -> None:
    """Write down the hash of every file below a finished result."""
    hashes = {str(file.relative_to(folder)): sha256_file(file) for file in _files(folder)}
    (folder / SEAL).write_bytes(msgspec.json.encode(hashes))


def sound(folder: Path) -> bool:
    """Whether a sealed result is there.

    Raises:
        CheckFailed: it is there and a file of it is another than when it was stored.
    """
    if not (folder / SEAL).is_file():
        return False
    stamp = folder.with_name(folder.name + _STAMP)
    now = _stamp(_files(folder))
    if stamp.is_file() and stamp.read_text() == now:
        return True
    wanted: dict[str, str] = msgspec.json.decode((folder / SEAL).read_bytes(), type=dict[str, str])
    found = {str(file.relative_to(folder)): sha256_file(file) for file in _files(folder)}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise CheckFailed(
                f"a stored object is damaged: {name}",
                why=f"{folder / name}: sha256 {found.get(name, 'none')}, stored as {wanted.get(name, 'none')}",
                do=f"rm -r {folder}  and run again: it is made anew",
            )
    write_file(stamp, now.encode())
    return True


def sound_git(store: Store, git: Git) -> None:
    """Check the bare store repository.

    Raises:
        CheckFailed: an object is damaged.
    """
    objects = git.git_dir / "objects"
    stamp = store.root / "git.stamp"
    now = _stamp(_files(objects))
    if stamp.is_file() and stamp.read_text() == now:
        return
    done = git.done("fsck", "--full", "--no-dangling", "--no-progress", "--connectivity-only", accept=())
    packs = [git.done("verify-pack", file, accept=()) for file in sorted(objects.glob("pack/*.idx"))]
    loose = git.done("fsck", "--no-full", "--no-dangling", "--no-progress", accept=())
    for looked in (done, *packs, loose):
        if looked.code:
            said = (looked.err or looked.out).decode(errors="replace").strip().splitlines()
            raise CheckFailed(
                "the store's git repository is damaged",
                why="; ".join(said[:3]) or f"git fsck ended with status {looked.code}",
                do=f"rm -r {git.git_dir}  and run again: pins are imported anew from the verified sdists",
            )
    write_file(stamp, now.encode())


def _files(folder: Path) -> list[Path]:
    found = []
    for below, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        found += [Path(below, name) for name in names if name != SEAL]
    return sorted(found)


def _stamp(files: list[Path]) -> str:
    lines = []
    for file in files:
        status = file.lstat()
        lines.append(f"{file} {status.st_size} {status.st_mtime_ns} {status.st_ino}")
    return sha256_bytes("\n".join(lines).encode())
