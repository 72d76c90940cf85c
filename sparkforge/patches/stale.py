"""Whether a patch applies exactly: each hunk's old lines must be in the file at the line that the hunk names.

Git silently moves a hunk to where it fits. Such a patch is *stale*: next time it may land in the wrong place. Git's own
words about it change between versions, so they are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkforge.git.objects import TreeEntry, contents, entries
from sparkforge.git.repository import Git
from sparkforge.patches.diff import Hunk, Section
from sparkforge.patches.mail import Mail
from sparkforge.patches.traps import Fault, Trap

CONTEXT = 3
_SHOWN = 3


@dataclass(frozen=True)
class Located:
    """Where a hunk's old lines are: the nearest line (from 1), and the trap unless it is exactly the hunk's own."""

    trap: Trap | None
    line: int | None


def locate(hunk: Hunk, lines: Sequence[bytes]) -> Located:
    """Find a hunk in the lines of a file."""
    if not hunk.old:
        return Located(None, hunk.line) if not lines else Located(Trap.FUZZ, None)
    said = hunk.line - 1
    if (at := _nearest(hunk.old, lines, said)) is not None:
        # Fewer than three lines of context say that the file ends here; git insists on it only at zero.
        ends = hunk.trailing >= CONTEXT or at + len(hunk.old) == len(lines)
        begins = hunk.leading >= CONTEXT or at == 0
        if at == said and ends and begins:
            return Located(None, hunk.line)
        return Located(Trap.OFFSET if at != said else Trap.FUZZ, at + 1)
    for cut in range(1, CONTEXT):
        head, tail = min(cut, hunk.leading), min(cut, hunk.trailing)
        inner = hunk.old[head : len(hunk.old) - tail]
        if inner and (at := _nearest(inner, lines, said + head)) is not None:
            return Located(Trap.FUZZ, at - head + 1)
    return Located(Trap.NO_PLACE, None)


def _nearest(old: Sequence[bytes], lines: Sequence[bytes], said: int) -> int | None:
    """Index nearest to the one named at which these lines are; None if they are nowhere."""
    want = list(old)
    last = len(lines) - len(want)
    places = (at for at in range(last + 1) if lines[at] == want[0] and list(lines[at : at + len(want)]) == want)
    return min(places, key=lambda at: abs(at - said), default=None)


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their line feeds; nothing else splits them."""
    *whole, rest = data.split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])


def faults(git: Git, steps: Sequence[tuple[Mail, str]]) -> list[Fault]:
    """What is not exact about patches, given each with the tree (or commit) before it."""
    names = [f"{tree}:{section.path}" for mail, tree in steps for section in mail.sections]
    data = contents(git, names)
    listings: dict[str, dict[str, TreeEntry]] = {}
    found = []
    for mail, tree in steps:
        for section in mail.sections:
            blob = data.get(f"{tree}:{section.path}")
            if section.created:
                if blob is not None:
                    found.append(Fault(mail.name, Trap.FILE_THERE.value, section.path))
            elif blob is None:
                listing = listings.setdefault(tree, entries(git, tree))
                found.append(Fault(mail.name, Trap.FILE_MOVED.value, _moved(git, section, listing)))
            else:
                found += _of_section(mail.name, section, split_lines(blob))
    return found


def _of_section(name: str, section: Section, lines: Sequence[bytes]) -> list[Fault]:
    found = []
    for number, hunk in enumerate(section.hunks, 1):
        place = locate(hunk, lines)
        if place.trap is None:
            continue
        where = "" if place.line is None else f", found at line {place.line} ({place.line - hunk.line:+d})"
        found.append(
            Fault(
                name,
                place.trap.value,
                f"{section.path}, hunk {number} of {len(section.hunks)} says line {hunk.line}{where}",
                "invoke patches.edit and invoke patches.export refresh it",
            )
        )
    return found


def _moved(git: Git, section: Section, listing: dict[str, TreeEntry]) -> str:
    """A sentence that says where a missing file probably went: to the same content, else to the same name."""
    same = [entry.path for entry in listing.values() if section.old_blob and entry.blob.startswith(section.old_blob)]
    if same:
        return f"{section.path} does not exist; {same[0]} has the same content"
    base = section.path.rpartition("/")[2]
    namesakes = [entry for entry in listing.values() if entry.path.rpartition("/")[2] == base]
    data = contents(git, (entry.blob for entry in namesakes))

    def fitting(entry: TreeEntry) -> int:
        lines = split_lines(data[entry.blob] or b"")
        return sum(locate(hunk, lines).line is not None for hunk in section.hunks)

    ranked = sorted(namesakes, key=lambda entry: (-fitting(entry), entry.path))[:_SHOWN]
    if not ranked:
        return f"{section.path} does not exist, nor a file of that name or content"
    told = ", ".join(f"{entry.path} ({fitting(entry)} of {len(section.hunks)} hunks fit)" for entry in ranked)
    return f"{section.path} does not exist; files of that name: {told}"
