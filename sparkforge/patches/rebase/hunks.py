"""A conflict, hunk by hunk: what the patch wanted, and the upstream lines that stand in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unidiff.patch import PatchSet

from sparkforge.git.objects import TreeEntry, contents
from sparkforge.git.repository import Git
from sparkforge.patches.diff import Hunk, Section
from sparkforge.patches.rebase.merge import Sides
from sparkforge.patches.rebase.outcome import Conflict
from sparkforge.patches.stale import locate, split_lines

_AROUND = 3


@dataclass(frozen=True)
class Change:
    """Lines of a file that upstream replaced; half-open ranges of line indexes from 0."""

    old: tuple[int, int]
    new: tuple[int, int]


def changes(git: Git, before: str, after: str) -> tuple[Change, ...]:
    """Where two blobs differ."""
    said = git.run("diff", "--no-ext-diff", "--no-color", "-U0", before, after)
    if b"\n@@ " not in said:
        return ()
    text = said[said.index(b"\n--- ") + 1 :].decode("latin-1")
    found = []
    for hunk in PatchSet(text)[0]:
        # With no lines on a side, git names the line before.
        old = hunk.source_start - (1 if hunk.source_length else 0)
        new = hunk.target_start - (1 if hunk.target_length else 0)
        found.append(Change((old, old + hunk.source_length), (new, new + hunk.target_length)))
    return tuple(found)


def conflicts(
    git: Git, left: Sequence[Sides], sections: Sequence[Section], before: Mapping[str, TreeEntry]
) -> list[Conflict]:
    """The hunks that do not fit.

    Args:
        git: repository.
        left: paths that the merge left over.
        sections: of the patch.
        before: entries of the tree that the patch applies to.
    """
    found: list[Conflict] = []
    for sides in left:
        section = _section(sides, sections, before)
        if section is None:
            continue
        if sides.ours is None:
            found += [
                _told(section, hunk, number, now="", why="the file is gone", at=0, instead=())
                for number, hunk in enumerate(section.hunks, 1)
            ]
        elif sides.base is None:
            found.append(Conflict(section.path, sides.path, "upstream has made a file of that name", 0, 0, (), 0, ()))
        elif not section.hunks:
            found.append(Conflict(section.path, sides.path, "its content or its mode changed", 0, 0, (), 0, ()))
        else:
            found += _in_file(git, sides.base.blob, sides.ours, section)
    return found


def _section(sides: Sides, sections: Sequence[Section], before: Mapping[str, TreeEntry]) -> Section | None:
    """The part of the patch that a path is about; by content where the file was renamed."""
    named = next((section for section in sections if section.path == sides.path), None)
    if named is not None or sides.base is None:
        return named
    return next(
        (s for s in sections if s.path in before and before[s.path].blob == sides.base.blob),
        None,
    )


def _in_file(git: Git, base: str, ours: TreeEntry, section: Section) -> list[Conflict]:
    data = contents(git, [base, ours.blob])
    old, new = split_lines(data[base] or b""), split_lines(data[ours.blob] or b"")
    differences = changes(git, base, ours.blob)
    found = []
    for number, hunk in enumerate(section.hunks, 1):
        line = locate(hunk, old).line or hunk.line
        begin = max(line - 1 + hunk.leading, 0)
        end = max(line - 1 + len(hunk.old) - hunk.trailing, begin)
        # Git merges neighbouring lines apart only where one unchanged line stands between.
        touching = [one for one in differences if one.old[0] <= end and one.old[1] >= begin]
        if not touching:
            continue
        at = _mapped(differences, touching[0], min(begin, touching[0].old[0]))
        until = _mapped(differences, touching[-1], max(end, touching[-1].old[1]), last=True)
        at, until = max(at - _AROUND, 0), min(until + _AROUND, len(new))
        found.append(
            _told(
                section,
                hunk,
                number,
                now=ours.path,
                why="upstream changed these lines",
                at=at + 1,
                instead=new[at:until],
            )
        )
    return found


def _mapped(differences: Sequence[Change], near: Change, line: int, *, last: bool = False) -> int:
    """Index in the new file of an index in the old one, at or beside a change."""
    if near.old[0] <= line <= near.old[1]:
        return near.new[1] if last else near.new[0]
    shift = sum((one.new[1] - one.new[0]) - (one.old[1] - one.old[0]) for one in differences if one.old[1] <= line)
    return line + shift


def _told(
    section: Section, hunk: Hunk, number: int, *, now: str, why: str, at: int, instead: Sequence[bytes]
) -> Conflict:
    return Conflict(
        path=section.path,
        now=now,
        why=why,
        hunk=number,
        line=hunk.line,
        wanted=tuple(_text(line) for line in _body(section, number)),
        at=at,
        instead=tuple(_text(line) for line in instead),
    )


def _body(section: Section, number: int) -> list[bytes]:
    """Lines of a hunk as the patch has them; none within a hunk can begin like a hunk's head."""
    return section.data.split(b"\n@@ ")[number].rstrip(b"\n").split(b"\n")[1:]


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\n")
