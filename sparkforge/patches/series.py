"""A series in its folder: patches in order, read and written.

A folder `<upstream>/<release>` has the patches, `series` (their order) and `tree` (the tree id they lead to).
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from sparkforge.core.errors import BadInput
from sparkforge.core.hashing import sha256_bytes
from sparkforge.core.paths import shown
from sparkforge.core.store import remove
from sparkforge.git.repository import Git
from sparkforge.patches.mail import Mail, read

ORDER_FILE = "series"
TREE_FILE = "tree"

_READERS = 4
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+-]*\.patch$")
_ID = re.compile(r"^[0-9a-f]{40}([0-9a-f]{24})?$")
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)
_AT_FDCWD = -100


@dataclass(frozen=True)
class Patch:
    """A patch in its folder: file name and bytes."""

    name: str
    raw: bytes


@dataclass(frozen=True)
class Series:
    """Patches for one pin, in order; `recorded` is the tree id from the file `tree`, or None."""

    upstream: str
    release: str
    dir: Path
    patches: tuple[Patch, ...]
    recorded: str | None = None

    @property
    def title(self) -> str:
        """For messages."""
        return f"{self.upstream} {self.release}"

    @property
    def sha256(self) -> str:
        """Hash of names, order and contents, without the comments of the order file."""
        return sha256_bytes(b"".join(f"{patch.name}\0{sha256_bytes(patch.raw)}\n".encode() for patch in self.patches))

    def mails(self, git: Git) -> tuple[Mail, ...]:
        """The patches, parsed."""
        with ThreadPoolExecutor(_READERS) as pool:  # git reads each; starting it takes longer than its work
            return tuple(pool.map(lambda patch: read(git, patch.name, patch.raw), self.patches))

    def only(self, names: Sequence[str]) -> Series:
        """The series with only these patches, in its own order, and without a recorded tree."""
        return replace(self, patches=tuple(p for p in self.patches if p.name in set(names)), recorded=None)


def load(folder: Path) -> Series:
    """Series in a folder.

    Raises:
        BadInput: there is no order file; a patch is listed twice, missing, or not listed.
    """
    order = folder / ORDER_FILE
    if not order.is_file():
        raise BadInput(f"{shown(folder)} has no series", why=f"{shown(order)} does not exist")
    names = [name for line in order.read_text(encoding="utf-8").splitlines() if (name := _named(line))]
    there = {path.name for path in folder.glob("*.patch")}
    for name in names:
        if not _NAME.match(name):
            raise BadInput(f"{shown(order)}: {name!r} is not the name of a patch file")
        if names.count(name) > 1:
            raise BadInput(f"{shown(order)}: {name} is listed {names.count(name)} times", do="keep one line")
        if name not in there:
            raise BadInput(f"{shown(order)}: {name} is listed but missing", do="remove the line or add the file")
    for name in sorted(there - set(names)):
        raise BadInput(f"{shown(folder / name)} is not listed in {shown(order)}", do="add a line for it")
    recorded = None
    if (folder / TREE_FILE).is_file():
        recorded = (folder / TREE_FILE).read_text(encoding="ascii", errors="replace").strip()
        if not _ID.match(recorded):
            raise BadInput(f"{shown(folder / TREE_FILE)} has no tree id", do="invoke patches.export writes it")
    patches = tuple(Patch(name, (folder / name).read_bytes()) for name in names)
    return Series(folder.parent.name, folder.name, folder, patches, recorded)


def _named(line: str) -> str:
    """File name in a line of an order file; `#` begins a comment."""
    return line.partition("#")[0].strip()


def write(folder: Path, patches: Sequence[Patch], tree: str, notes: Mapping[str, Sequence[str]]) -> None:
    """Replace the series in a folder, in one step: a new folder is written beside it and then takes its place.

    Args:
        folder: `<upstream>/<release>`; created if needed.
        patches: in order.
        tree: tree id that they lead to.
        notes: comment lines of the order file above each patch, by file name; under "" those at the end.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f".partial-{folder.name}-*"):
        remove(left)
    beside = Path(tempfile.mkdtemp(prefix=f".partial-{folder.name}-", dir=folder.parent))
    try:
        if folder.is_dir():
            for file in folder.iterdir():
                if file.suffix != ".patch" and file.name not in {ORDER_FILE, TREE_FILE}:
                    shutil.copy2(file, beside / file.name)
        for patch in patches:
            (beside / patch.name).write_bytes(patch.raw)
        lines = [line for patch in patches for line in (*notes.get(patch.name, ()), patch.name)]
        (beside / ORDER_FILE).write_text(
            "".join(f"{line}\n" for line in [*lines, *notes.get("", ())]), encoding="utf-8"
        )
        (beside / TREE_FILE).write_text(f"{tree}\n", encoding="ascii")
        beside.chmod(0o755)
        if folder.is_dir():
            _exchange(beside, folder)
        else:
            beside.rename(folder)
    finally:
        if beside.exists():
            remove(beside)


def notes(text: str) -> dict[str, tuple[str, ...]]:
    """Comment and blank lines of an order file, by the patch below them; "" for those at the end."""
    found: dict[str, tuple[str, ...]] = {}
    above: list[str] = []
    for line in text.splitlines():
        if name := _named(line):
            found[name] = tuple(above)
            above = []
        else:
            above.append(line)
    return found | {"": tuple(above)}


def _exchange(one: Path, other: Path) -> None:
    """Swap two directories, in one step if the file system can."""
    libc = ctypes.CDLL(None, use_errno=True)
    swap = getattr(libc, "renameat2", None)
    if swap and swap(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) == 0:
        return
    aside = one.with_name(f"{one.name}-old")
    other.rename(aside)
    one.rename(other)
    aside.rename(one)
