"""A quilt series that nobody here wrote, and the trees that it is for.

What patch(1) takes is read: no mail, no `diff --git` line, `Index:` lines, `-p0`, prose between files, time stamps.
Each patch becomes a git diff in memory; what had to be mended is reported. What can be read in two ways is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sparkforge.core.errors import BadInput
from sparkforge.core.paths import shown
from sparkforge.git.objects import entries
from sparkforge.git.repository import Git
from sparkforge.patches import walk
from sparkforge.patches.rebase.item import Item
from sparkforge.patches.rebase.left import moved
from sparkforge.patches.traps import Trap

_HUNK = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_STAMP = re.compile(rb"(\t.*|\s+\d{4}-\d\d-\d\d[ T].*|\s+\w{3} \w{3} +\d.*)$")
_LEVEL = re.compile(r"^-p(\d+|ab)$")
_TITLE = re.compile(rb"^(?:Subject|Description|# DP):\s*(?:\[PATCH[^\]]*\]\s*)?(\S.*)$", re.MULTILINE)
_BINARY = re.compile(rb"^Binary files .* differ$")
_ODD = re.compile(r'["\\\x00-\x1f\x7f]')


@dataclass
class _File:
    """One file of a patch, as it is read.

    Attributes:
        old: path on the old side; None for /dev/null.
        new: path on the new side; None for /dev/null.
        header: git's lines about modes, kept as they are.
        hunks: lines of all hunks.
        sides: number of old and new lines of each hunk.
    """

    old: str | None
    new: str | None
    header: list[bytes]
    hunks: list[bytes]
    sides: list[tuple[int, int]]

    @property
    def whole(self) -> bool:
        """It needs no hunks: binary data, a mode, or an empty file."""
        return bool(self.hunks or self.header)


def read(folder: Path, git: Git, base: str) -> tuple[Item, ...]:
    """The patches of a quilt series, each as a git diff against the tree before it.

    Args:
        folder: the folder with the file `series`.
        git: repository with the tree.
        base: commit of the tree that the series is for.

    Raises:
        BadInput: no series, a patch is not there, its names disagree, it has a binary section without data, a hunk does
            not hold the lines that it says, or a path leads out of the tree.
    """
    order = folder / "series"
    if not order.is_file():
        raise BadInput(f"{shown(folder)} holds no series", why=f"{shown(order)} is not there")
    there = set(entries(git, base))
    items = []
    for line in order.read_text(encoding="utf-8").splitlines():
        name, *words = line.partition("#")[0].split() or [""]
        if not name:
            continue
        if not (folder / name).is_file():
            raise BadInput(f"{shown(order)}: {name} is listed and not there")
        levels = [found[1] for word in words if (found := _LEVEL.match(word))]
        items.append(
            _item(name, (folder / name).read_bytes(), 1 if not levels or levels[0] == "ab" else int(levels[0]), there)
        )
    if not items:
        raise BadInput(f"{shown(order)} lists no patch")
    return _offsets(git, base, items)


def _offsets(git: Git, base: str, items: Sequence[Item]) -> tuple[Item, ...]:
    """The items, those that apply to their own tree at an offset with a remark."""
    steps = walk.changes(git, base, [(item.name, item.raw) for item in items])
    trees = [base, *(one.commit for one in walk.written(git, base, [(step, None) for step in steps]))]
    found = []
    for number, item in enumerate(items):
        away = moved(git, trees[number], item.sections) if number < len(steps) else []
        remarks = (*item.remarks, f"{len(away)} hunks are at an offset on its own tree") if away else item.remarks
        found.append(Item(item.name, item.raw, item.id, item.title, remarks=remarks))
    return tuple(found)


def _item(name: str, raw: bytes, level: int, there: set[str]) -> Item:
    remarks: list[str] = []
    out: list[bytes] = []
    for file in _files(name, raw, level, remarks):
        out += _section(name, file, there)
    if not out:
        remarks.append("it changes nothing")
    if level != 1:
        remarks.append(f"-p{level}")
    title = _TITLE.search(raw)
    flat = name.replace("/", "--")
    return Item(
        name=flat,
        raw=b"".join(out),
        id=name.removesuffix(".patch").removesuffix(".diff"),
        title=title[1].decode("utf-8", "replace").strip() if title else "",
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _files(name: str, raw: bytes, level: int, remarks: list[str]) -> Iterator[_File]:
    lines = raw.split(b"\n")
    at = 0
    git: _File | None = None  # the file of a `diff --git` line whose hunks have not come yet
    while at < len(lines):
        line = lines[at]
        if line.startswith(b"diff --git "):
            if git is not None and git.whole:
                yield git
            git, at = _git_header(name, lines, at)
        elif _begins(lines, at):
            file = _File(_side(line, level), _side(lines[at + 1], level), git.header if git else [], [], [])
            if git is None:
                remarks.append("no `diff --git` line")
            elif not {file.old, file.new} - {None} <= {git.old, git.new}:
                raise BadInput(
                    f"{name}: {Trap.NAMES_DISAGREE.value}",
                    why=f"`diff --git` says {git.new}, below it stand {file.old} and {file.new}",
                )
            git, at = None, _hunks(name, lines, at + 2, file, remarks)
            yield file
        else:
            _prose(name, line, remarks)
            at += 1
    if git is not None and git.whole:
        yield git


def _begins(lines: Sequence[bytes], at: int) -> bool:
    """Whether a file's hunks begin here."""
    head, *below = lines[at : at + 3]
    return head.startswith(b"--- ") and len(below) > 1 and below[0].startswith(b"+++ ") and bool(_HUNK.match(below[1]))


def _prose(name: str, line: bytes, remarks: list[str]) -> None:
    """A line that is no part of a diff."""
    if _BINARY.match(line):
        raise BadInput(f"{name}: {Trap.BINARY_WITHOUT_DATA.value}", why=line.decode("utf-8", "replace"))
    if line.startswith(b"Index: "):
        remarks.append("an `Index:` line")


def _git_header(name: str, lines: Sequence[bytes], at: int) -> tuple[_File, int]:
    """The lines from `diff --git` to the first hunk's `---`, or with the binary data that follows."""
    both = lines[at][len(b"diff --git ") :].decode("utf-8", "surrogateescape")
    # The prefixes may be any two of one length (a/ b/, i/ w/); the names behind them are equal, so is their length.
    old, new = (half.partition("/")[2] for half in (both[: len(both) // 2], both[len(both) // 2 + 1 :]))
    if old != new and not any(line.startswith((b"rename ", b"copy ")) for line in lines[at + 1 : at + 5]):
        raise BadInput(f"{name}: {Trap.NAMES_DISAGREE.value}", why=both)
    file = _File(old, new, [], [], [])
    at += 1
    while at < len(lines):
        line = lines[at]
        if line.startswith((b"rename ", b"copy ")):
            raise BadInput(f"{name}: {Trap.RENAME.value}", why=line.decode("utf-8", "replace"))
        if line.startswith((b"new file mode ", b"deleted file mode ", b"old mode ", b"new mode ")):
            file.header.append(line)
        elif line == b"GIT binary patch":
            end = next((n for n in range(at, len(lines)) if lines[n].startswith((b"diff --git ", b"-- "))), len(lines))
            file.hunks = list(lines[at:end])
            return file, end
        elif not line.startswith((b"index ", b"similarity ", b"dissimilarity ")):
            break
        at += 1
    return file, at


def _side(line: bytes, level: int) -> str | None:
    """Path of a `---` or `+++` line below the stripped folders; None for /dev/null."""
    path = _STAMP.sub(b"", line[4:]).strip().decode("utf-8", "surrogateescape")
    if path == "/dev/null":
        return None
    return "/".join(path.removeprefix("./").split("/")[level:] if level else [path.removeprefix("./")])


def _hunks(name: str, lines: Sequence[bytes], at: int, file: _File, remarks: list[str]) -> int:
    """Read hunks by the numbers that they say; returns the line after the last."""
    while at < len(lines) and (head := _HUNK.match(lines[at])):
        old, new = (int(head[place] or 1) for place in (2, 4))
        file.sides.append((old, new))
        file.hunks.append(lines[at])
        at += 1
        while old > 0 or new > 0 or (at < len(lines) and lines[at].startswith(b"\\")):
            line = lines[at] if at < len(lines) else b"."
            if line in {b"", b"\r"} and (at + 1 < len(lines)):  # an editor took the blank of an empty context line
                line = b" " + line
                remarks.append("an empty context line without its blank")
            sign = line[:1]
            if sign not in {b" ", b"+", b"-", b"\\"}:
                raise BadInput(f"{name}: a hunk does not hold the lines that it says", why=f"line {at + 1} of the file")
            old -= sign in {b" ", b"-"}
            new -= sign in {b" ", b"+"}
            file.hunks.append(line)
            at += 1
        if old or new:
            raise BadInput(f"{name}: a hunk holds more lines than it says", why=f"line {at} of the file")
    return at


def _section(name: str, file: _File, there: set[str]) -> list[bytes]:
    """The file as a section of a git diff; `there` is kept up with what it makes and removes."""
    if file.old is not None and file.new is not None and file.old != file.new:
        raise BadInput(f"{name}: {Trap.NAMES_DISAGREE.value}", why=f"{file.old}, {file.new}")
    path = file.new or file.old or ""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or ".git" in parts:
        raise BadInput(f"{name}: {Trap.OUTSIDE.value}", why=path or "no path is left after the stripped folders")
    if _ODD.search(path):
        raise BadInput(f"{name}: a path that a diff must quote", why=repr(path))
    creates = path not in there and (file.old is None or [old for old, _ in file.sides] == [0])
    removes = file.new is None or ([new for _, new in file.sides] == [0] and file.sides[0][0] > 0)
    header = [line for line in file.header if not line.startswith((b"new file mode ", b"deleted file mode "))]
    kind = next((line for line in file.header if line.startswith(b"new file mode ")), b"new file mode 100644")
    if creates or kind in file.header:
        header.append(kind)
        there.add(path)
    elif removes:
        header.append(b"deleted file mode 100644")
        there.discard(path)
    head = [b"diff --git a/%b b/%b" % ((path.encode("utf-8", "surrogateescape"),) * 2), *header]
    if file.sides:
        raw = path.encode("utf-8", "surrogateescape")
        made = creates or kind in file.header
        head += [
            b"--- " + (b"/dev/null" if made else b"a/" + raw),
            b"+++ " + (b"/dev/null" if removes and not made else b"b/" + raw),
        ]
    return [line + b"\n" for line in [*head, *file.hunks]]
