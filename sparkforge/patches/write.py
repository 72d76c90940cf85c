"""Writing a series' folder: the new one is made beside it, whole, and takes its place in one step."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparkforge.core.store import remove
from sparkforge.patches.series import ORDER_FILE, TREE_FILE, Patch

_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)
_AT_FDCWD = -100


def write(folder: Path, patches: Sequence[Patch], tree: str, notes: Mapping[str, Sequence[str]]) -> None:
    """Replace the series in a folder.

    Args:
        folder: `<upstream>/<release>`; made if it is not there.
        patches: in order.
        tree: tree id that they lead to.
        notes: comment lines of the order file above each patch, by its file name; under "" those at the end.
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
    """Comment and blank lines of an order file, by the patch that they stand above; "" for those at the end."""
    found: dict[str, tuple[str, ...]] = {}
    above: list[str] = []
    for line in text.splitlines():
        if name := line.partition("#")[0].strip():
            found[name] = tuple(above)
            above = []
        else:
            above.append(line)
    return found | {"": tuple(above)}


def _exchange(one: Path, other: Path) -> None:
    """Swap two directories in one step; in two where the file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    swap = getattr(libc, "renameat2", None)
    if swap and swap(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) == 0:
        return
    aside = one.with_name(f"{one.name}-old")
    other.rename(aside)
    one.rename(other)
    aside.rename(one)
