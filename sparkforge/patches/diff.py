"""The diff in a patch: one section a file, with its header lines as they are and its hunks read by unidiff.

unidiff wants text; Latin-1 maps every byte to one character and back.
"""

from __future__ import annotations

import codecs
import io
from dataclasses import dataclass
from functools import cached_property

from unidiff import constants as mark
from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk as Parsed
from unidiff.patch import PatchSet

from sparkforge.core.errors import BadInput

SECTION = b"diff --git "
BINARY = b"GIT binary patch"
_NOWHERE = b"/dev/null"


@dataclass(frozen=True)
class Hunk:
    """One change at one place.

    Attributes:
        line: first old line, counted from 1; 0 if the old side is empty.
        old, new: lines before and after, with context and line feeds.
        removed, added: the same without context.
        leading, trailing: number of context lines before the first and after the last change.
    """

    line: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    removed: tuple[bytes, ...]
    added: tuple[bytes, ...]
    leading: int
    trailing: int


@dataclass(frozen=True)
class Section:
    """What a patch does to one file.

    Attributes:
        patch: file name of the patch, for messages.
        path: the file, from the new side of the `diff --git` line.
        header: lines from `diff --git` to the first hunk, without line feeds.
        data: all bytes of the section.
    """

    patch: str
    path: str
    header: tuple[bytes, ...]
    data: bytes

    def value(self, keyword: bytes) -> bytes | None:
        """Rest of the first header line that begins with a keyword, or None."""
        return next((line[len(keyword) :] for line in self.header if line.startswith(keyword)), None)

    @property
    def created(self) -> bool:
        """The file is new."""
        return self.value(b"new file mode ") is not None

    @property
    def deleted(self) -> bool:
        """The file is removed."""
        return self.value(b"deleted file mode ") is not None

    @property
    def binary(self) -> bool:
        """The content is given as git's binary delta."""
        return BINARY in self.header

    @property
    def old_blob(self) -> str:
        """Id of the content before, if the patch says it, else ""."""
        return (self.value(b"index ") or b"").split(b"..")[0].decode()

    @cached_property
    def hunks(self) -> tuple[Hunk, ...]:
        """Changes, in order; none for a binary delta or a change of mode.

        Raises:
            BadInput: a hunk has another length than it says, or another file follows in the section.
        """
        if self.binary or b"\n@@ " not in self.data or b"\n--- " not in self.data:
            return ()
        # From the --- line on: in the lines above unidiff guesses where we refuse.
        text = self.data[self.data.index(b"\n--- ") + 1 :].decode("latin-1")
        try:
            files = list(PatchSet(io.StringIO(text, newline="\n")))
        except UnidiffParseError as bad:
            what = f"{self.patch}: a hunk of {self.path} has another length than it says"
            raise BadInput(what, why=str(bad)) from bad
        if len(files) != 1:
            raise BadInput(f"{self.patch}: a file without a `diff --git` line follows {self.path}")
        return tuple(_hunk(hunk) for hunk in files[0])


def split(patch: str, data: bytes) -> tuple[Section, ...]:
    """Sections of a diff or of a whole mail; text before the first `diff --git` is ignored."""
    begin = 0 if data.startswith(SECTION) else data.find(b"\n" + SECTION) + 1
    if begin == 0 and not data.startswith(SECTION):
        return ()
    starts = [begin]
    # No line within a hunk can begin so: those begin with a blank, a sign or a backslash.
    while (at := data.find(b"\n" + SECTION, starts[-1])) != -1:
        starts.append(at + 1)
    return tuple(_section(patch, data[begin:end]) for begin, end in zip(starts, [*starts[1:], len(data)], strict=True))


def unquote(word: bytes) -> str:
    """Path as git writes it in a diff: plain, or in C quotes if it has odd bytes."""
    word = word.rstrip(b"\t")
    if word.startswith(b'"') and word.endswith(b'"') and len(word) > 1:
        word = bytes(codecs.escape_decode(word[1:-1])[0])
    return word.decode("utf-8", "surrogateescape")


def side(word: bytes) -> str | None:
    """Path of a `---` or `+++` line, without a/ or b/; None for /dev/null."""
    if word.rstrip(b"\t") == _NOWHERE:
        return None
    path = unquote(word)
    return path[2:] if path[:2] in {"a/", "b/"} else path


def both(line: bytes) -> tuple[str, str] | None:
    """Old and new path of a `diff --git` line; None if they cannot be told apart."""
    rest = line[len(SECTION) :]
    middle = len(rest) // 2
    if rest[middle : middle + 1] == b" ":
        # Equal names are split in the middle, even if they have blanks.
        old, new = side(rest[:middle]), side(rest[middle + 1 :])
        if old is not None and old == new:
            return old, new
    cut = rest.rfind(b' "b/') if rest.endswith(b'"') else rest.rfind(b" b/")
    if cut <= 0:
        return None
    old, new = side(rest[:cut]), side(rest[cut + 1 :])
    return (old, new) if old is not None and new is not None else None


def _section(patch: str, data: bytes) -> Section:
    header: list[bytes] = []
    for line in data.split(b"\n"):
        if line.startswith(b"@@ "):
            break
        if line:
            header.append(line)
        if line == BINARY:
            break
    paths = both(header[0])
    if paths is None:
        raise BadInput(f"{patch}: a `diff --git` line cannot be read", why=header[0].decode("utf-8", "replace"))
    return Section(patch, paths[1], tuple(header), data)


def _hunk(hunk: Parsed) -> Hunk:
    found: dict[str, list[bytes]] = {mark.LINE_TYPE_CONTEXT: [], mark.LINE_TYPE_REMOVED: [], mark.LINE_TYPE_ADDED: []}
    old: list[bytes] = []
    new: list[bytes] = []
    kinds: list[str] = []
    last: list[list[bytes]] = []
    for line in hunk:
        if line.line_type == mark.LINE_TYPE_NO_NEWLINE:
            for lines in last:
                lines[-1] = lines[-1].removesuffix(b"\n")
            continue
        kind = line.line_type if line.line_type in found else mark.LINE_TYPE_CONTEXT
        last = [
            found[kind],
            *([old] if kind != mark.LINE_TYPE_ADDED else []),
            *([new] if kind != mark.LINE_TYPE_REMOVED else []),
        ]
        for lines in last:
            lines.append(line.value.encode("latin-1"))
        kinds.append(kind)
    changes = [number for number, kind in enumerate(kinds) if kind != mark.LINE_TYPE_CONTEXT] or [len(kinds), -1]
    return Hunk(
        line=hunk.source_start,
        old=tuple(old),
        new=tuple(new),
        removed=tuple(found[mark.LINE_TYPE_REMOVED]),
        added=tuple(found[mark.LINE_TYPE_ADDED]),
        leading=changes[0],
        trailing=len(kinds) - 1 - changes[-1],
    )
