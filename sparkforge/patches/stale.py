"""Whether a patch applies exactly: each hunk's old lines held against the blob, at the line that the hunk names.

Git places a hunk that moved without a word; a patch that lands elsewhere than it says is *stale*, since next time it
may land wrong. What git says about it is prose that changes, so it is not read.
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
class Place:
    """Where a hunk's old lines are.

    Attributes:
        trap: None where they are exactly where the hunk says.
        line: the nearest place, counted from 1; None where there is none.
    """

    trap: Trap | None
    line: int | None


def locate(hunk: Hunk, lines: Sequence[bytes]) -> Place:
    """Place of a hunk in the lines of a file."""
    if not hunk.old:
        return Place(None, hunk.line) if not lines else Place(Trap.FUZZ, None)
    said = hunk.line - 1
    if found := _nearest(hunk.old, lines, said):
        at = found[0]
        # Less than three lines of trailing context say "here the file ends"; git holds it to that only at zero.
        ends = hunk.trailing >= CONTEXT or at + len(hunk.old) == len(lines)
        begins = hunk.leading >= CONTEXT or at == 0
        if at == said and ends and begins:
            return Place(None, hunk.line)
        return Place(Trap.OFFSET if at != said else Trap.FUZZ, at + 1)
    for cut in range(1, CONTEXT):
        head, tail = min(cut, hunk.leading), min(cut, hunk.trailing)
        inner = hunk.old[head : len(hunk.old) - tail]
        if inner and (found := _nearest(inner, lines, said + head)):
            return Place(Trap.FUZZ, found[0] - head + 1)
    return Place(Trap.NO_PLACE, None)


def _nearest(old: Sequence[bytes], lines: Sequence[bytes], said: int) -> tuple[int] | None:
    """Index nearest to the one said at which these lines stand, in a tuple since 0 is one."""
    want = list(old)
    if said >= 0 and list(lines[said : said + len(want)]) == want:
        return (said,)
    places = [
        at
        for at in range(len(lines) - len(want) + 1)
        if lines[at] == want[0] and list(lines[at : at + len(want)]) == want
    ]
    return (min(places, key=lambda at: abs(at - said)),) if places else None


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their line feeds, split at nothing else."""
    *whole, rest = data.split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])


def faults(git: Git, steps: Sequence[tuple[Mail, str]]) -> list[Fault]:
    """What is not exact about patches, each held against the tree before it.

    Args:
        git: repository with the trees.
        steps: patches, each with the tree (or commit) that it is applied to.
    """
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
                "patches.edit, then patches.export, refresh it",
            )
        )
    return found


def _moved(git: Git, section: Section, listing: dict[str, TreeEntry]) -> str:
    """Sentence that says where a file that is not there probably went: the same content, else the same name."""
    same = [entry.path for entry in listing.values() if section.old_blob and entry.blob.startswith(section.old_blob)]
    if same:
        return f"{section.path} is not there; the same content is {same[0]}"
    base = section.path.rpartition("/")[2]
    namesakes = [entry for entry in listing.values() if entry.path.rpartition("/")[2] == base]
    data = contents(git, (entry.blob for entry in namesakes))

    def fitting(entry: TreeEntry) -> int:
        lines = split_lines(data[entry.blob] or b"")
        return sum(locate(hunk, lines).line is not None for hunk in section.hunks)

    ranked = sorted(namesakes, key=lambda entry: (-fitting(entry), entry.path))[:_SHOWN]
    if not ranked:
        return f"{section.path} is not there, nor a file of that name or content"
    told = ", ".join(f"{entry.path} ({fitting(entry)} of {len(section.hunks)} hunks fit)" for entry in ranked)
    return f"{section.path} is not there; of that name: {told}"
