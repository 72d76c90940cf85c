"""Traps: what git applies silently or with a wrong result, and what mail or other tools would break.

They are found in the bytes alone, before git sees them; `stale` and `check` find what needs a tree.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePosixPath

from sparkforge.core.errors import BadInput
from sparkforge.patches.diff import SECTION, Section, both, side, split

_BARE = re.compile(rb"^--- \S.*\n\+\+\+ \S.*\n@@ -", re.MULTILINE)
_ODD_MODES = {b"120000": "a symbolic link", b"160000": "a submodule"}


class Trap(Enum):
    """What can be wrong with a patch's bytes or with its place in a tree."""

    NO_DIFF = "no git diff"
    NAMES_DISAGREE = "file names that disagree"
    BINARY_WITHOUT_DATA = "a binary section without data"
    CHANGES_NOTHING = "changes nothing"
    CRLF = "CRLF line endings"
    OUTSIDE = "a path outside the tree"
    RENAME = "a rename"
    FILE_TWICE = "one file in two sections"
    NOT_A_FILE = "not a regular file"
    OFFSET = "applies at an offset"
    FUZZ = "applies only with fuzz"
    NO_PLACE = "its old lines are not in the file"
    FILE_MOVED = "the upstream file moved"
    FILE_THERE = "creates a file that exists"


@dataclass(frozen=True)
class Fault:
    """One thing wrong with one patch (or with the series itself): what, the fact behind it, and how to fix it."""

    patch: str
    what: str
    why: str
    do: str = ""

    def __str__(self) -> str:
        return f"{self.patch}: {self.what}: {self.why}" + (f" ({self.do})" if self.do else "")


def faults(name: str, raw: bytes) -> list[Fault]:
    """Traps in the bytes of one patch; reads no hunks, so it is fast enough for every build."""
    if b"\r\n" in raw:
        line = raw[: raw.index(b"\r\n")].count(b"\n") + 1
        return [_fault(name, Trap.CRLF, f"line {line}; mail and git am drop carriage returns", "patches.export")]
    begin = raw.find(b"\n" + SECTION) + 1
    if begin == 0:
        return [_fault(name, Trap.NO_DIFF, "no line begins with `diff --git`", "write it with `git format-patch`")]
    if _BARE.search(raw[:begin]):
        return [_fault(name, Trap.NAMES_DISAGREE, "there is a diff before the first `diff --git` line")]
    try:
        sections = split(name, raw)
    except BadInput as bad:
        return [_fault(name, Trap.NAMES_DISAGREE, f"{bad.what}: {bad.why}")]
    found = [fault for section in sections for fault in _of_section(name, section)]
    paths = [section.path for section in sections]
    return found + [_fault(name, Trap.FILE_TWICE, path) for path in dict.fromkeys(paths) if paths.count(path) > 1]


def refuse(found: Sequence[Fault], series: str) -> None:
    """Raise if there are faults.

    Raises:
        BadInput: the first fault, and how many more there are.
    """
    if found:
        more = f"; {len(found) - 1} more" if len(found) > 1 else ""
        raise BadInput(
            f"{series}: {found[0].patch}: {found[0].what}", why=found[0].why + more, do=found[0].do or "patches.check"
        )


def _of_section(name: str, section: Section) -> list[Fault]:
    found = []
    header = section.header
    old, new = both(header[0]) or ("", "")
    below = {word: section.value(word) for word in (b"--- ", b"+++ ")}
    sides = [side(word) for word in below.values() if word is not None]
    renames = [line for line in header if line.startswith((b"rename ", b"copy "))]
    if renames:
        found.append(
            _fault(name, Trap.RENAME, renames[0].decode("utf-8", "replace"), "write it as a deletion and a new file")
        )
    elif old != new or any(path not in {None, new} for path in sides) or (sides and not any(sides)):
        names = ", ".join(dict.fromkeys([old, new, *(path or "/dev/null" for path in sides)]))
        found.append(_fault(name, Trap.NAMES_DISAGREE, names))
    elif sides and ((sides[0] is None) is not section.created or (sides[-1] is None) is not section.deleted):
        found.append(_fault(name, Trap.NAMES_DISAGREE, f"{new}: /dev/null on one side, but not in the mode line"))
    for path in dict.fromkeys([old, new, *(path for path in sides if path)]):
        parts = PurePosixPath(path).parts
        if path.startswith("/") or ".." in parts or ".git" in (part.lower() for part in parts) or "//" in path:
            found.append(_fault(name, Trap.OUTSIDE, path))
    for keyword in (b"new file mode ", b"new mode ", b"deleted file mode "):
        mode = section.value(keyword) or b""
        if mode in _ODD_MODES:
            found.append(_fault(name, Trap.NOT_A_FILE, f"{new} is {_ODD_MODES[mode]}"))
    if section.value(b"Binary files ") is not None:
        found.append(_fault(name, Trap.BINARY_WITHOUT_DATA, new, "export it anew: patches.export writes the data"))
    elif not _changes(section):
        found.append(_fault(name, Trap.CHANGES_NOTHING, new))
    return found


def _changes(section: Section) -> bool:
    """Whether the section can change content, mode, or the existence of a file."""
    if section.binary or section.value(b"old mode ") is not None or b"\n@@ " in section.data:
        return True
    return section.created or section.deleted


def _fault(name: str, trap: Trap, why: str, do: str = "") -> Fault:
    return Fault(name, trap.value, why, do)
