"""Files in which a stand-in's wheel differs from the pin's: `images/<stand-in>-differences.txt`.

An overlay may replace a file of a stand-in only if it equals the pin's, or if a maintainer looked at the difference and
marked the file `accepted`.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from sparkforge.core.errors import BadInput

_WORDS = ("differs", "accepted", "absent", "added")
_NONE = "-"


def compare(pin: Path, stand_in: Path) -> list[tuple[str, str, str, str]]:
    """Rows (word, path, sha256 in the pin, sha256 in the stand-in) of all files but the metadata, sorted by path.

    A folder that only one side has is one row, with the number of its files instead of a hash. Compiled libraries are
    left out: two builds exist because they differ.
    """
    ours, theirs = _hashes(pin), _hashes(stand_in)
    rows = [
        ("differs", path, ours[path], theirs[path])
        for path in ours.keys() & theirs.keys()
        if ours[path] != theirs[path]
    ]
    rows += [("absent", path, held, _NONE) for path, held in _alone(ours, theirs).items()]
    rows += [("added", path, _NONE, held) for path, held in _alone(theirs, ours).items()]
    return sorted(rows, key=lambda row: row[1])


def _alone(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """Files that only the first has, or the topmost folders that only it has."""
    folders = {str(parent) for path in other for parent in PurePosixPath(path).parents}
    files: dict[str, list[str]] = {}
    for path in one.keys() - other.keys():
        own = [str(parent) for parent in PurePosixPath(path).parents if str(parent) not in folders]
        files.setdefault(f"{own[-1]}/" if own else path, []).append(path)
    return {top: f"{len(below)}-files" if top.endswith("/") else one[top] for top, below in files.items()}


def _hashes(wheel: Path) -> dict[str, str]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if ".dist-info/" not in n and not n.endswith((".so", "/"))]
            return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in names}
    except (OSError, zipfile.BadZipFile) as bad:
        raise BadInput(f"{wheel.name} is not a wheel", why=str(bad)) from bad


def render(pin: Path, stand_in: Path, before: str = "") -> str:
    """The list as text; what `before` accepts stays accepted as long as both hashes stay the same."""
    kept = {row[1:] for row in read(before) if row[0] == "accepted"}
    rows = [("accepted", *row[1:]) if row[1:] in kept else row for row in compare(pin, stand_in)]
    ours, theirs = (" ".join(wheel.name.split("-")[:2]) for wheel in (pin, stand_in))
    head = [
        f"# Files in which {theirs} is not {ours}, on every platform. Compiled libraries are left out.",
        f"# absent: not in {theirs}. added: not in {ours}. differs: in both, and no patch may touch it there.",
        "# accepted: differs, was looked at, and a patch may replace it.",
        f"# Columns: word, path, sha256 in {ours}, sha256 in {theirs}; for a whole folder the number of its files.",
    ]
    return "\n".join([*head, *("  ".join(row) for row in rows)]) + "\n"


def read(text: str) -> list[tuple[str, str, str, str]]:
    """Rows of such a list.

    Raises:
        BadInput: a line cannot be read; names it.
    """
    rows = []
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        words = line.split()
        if len(words) != 4 or words[0] not in _WORDS:  # noqa: PLR2004  word, path, two hashes
            raise BadInput("a list of differences has a line that cannot be read", why=line)
        rows.append((words[0], words[1], words[2], words[3]))
    return rows


def accepted(text: str) -> dict[str, str]:
    """Files that a patch may replace although they differ, each with the hash it must have in the stand-in."""
    return {path: theirs for word, path, _, theirs in read(text) if word == "accepted"}
