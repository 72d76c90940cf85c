"""Line evidence: which of a patch's new lines upstream has by now, and in which files lines stand.

A line counts without the blanks around it, and only if it says something: three letters or digits at least, so that
a bracket or an `else:` of upstream's own is no evidence for anything.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sparkforge.git.objects import contents, entries
from sparkforge.git.repository import Git
from sparkforge.patches.diff import Section

_BATCH = 500
_LARGEST = 400_000  # bytes of a file
_HEAD = 8000  # git too calls a file binary by its first bytes
_SAYS = re.compile(rb"\w.*\w.*\w", re.DOTALL)


def telling(lines: Iterable[bytes]) -> list[bytes]:
    """Lines that say something, without the blanks around them."""
    return [line for line in (raw.strip() for raw in lines) if _SAYS.search(line)]


@dataclass(frozen=True)
class Share:
    """How many of a patch's new lines upstream has.

    Attributes:
        there: lines that the new tree has.
        of: lines that the old tree did not have.
    """

    there: int
    of: int

    @property
    def most(self) -> bool:
        """At least half of them: upstream has some of the patch."""
        return self.there > 0 and 2 * self.there >= self.of

    @property
    def nearly_all(self) -> bool:
        """At least three quarters of them: upstream has the patch, reworded here and there."""
        return self.there > 0 and 4 * self.there >= 3 * self.of


@lru_cache(maxsize=4)
def _known(git: Git, tree: str, wanted: frozenset[bytes]) -> frozenset[bytes]:
    """Which of these lines a tree holds; the old tree of a whole matrix is read once."""
    where = _where(git, {path: entry.blob for path, entry in entries(git, tree).items()}, wanted)
    return frozenset(line for line, files in where.items() if files)


def _written_by_hand(git: Git, blobs: Mapping[str, str]) -> list[tuple[str, str]]:
    """Paths and blobs without the largest, which are generated: a quarter of the bytes of FlashInfer 0.7.2."""
    names = "".join(f"{blob}\n" for blob in blobs.values()).encode()
    sizes = git.run("cat-file", "--batch-check=%(objectsize)", stdin=names).split()
    return [at for at, size in zip(blobs.items(), sizes, strict=True) if int(size) <= _LARGEST]


def _where(git: Git, blobs: Mapping[str, str], wanted: set[bytes] | frozenset[bytes]) -> dict[bytes, set[str]]:
    """Files that hold these lines."""
    found: dict[bytes, set[str]] = {line: set() for line in wanted}
    paths = _written_by_hand(git, blobs) if wanted else []
    for start in range(0, len(paths), _BATCH):
        batch = paths[start : start + _BATCH]
        data = contents(git, (blob for _, blob in batch))
        for path, blob in batch:
            content = data[blob] or b""
            if b"\0" not in content[:_HEAD]:
                for line in wanted.intersection(map(bytes.strip, content.split(b"\n"))):
                    found[line].add(path)
    return found


@dataclass(frozen=True)
class Found:
    """What the new tree's changed files hold.

    Attributes:
        shares: of each patch, by name.
        where: files that hold a line.
    """

    shares: Mapping[str, Share]
    where: Mapping[bytes, Collection[str]]

    def holders(self, lines: Iterable[bytes]) -> tuple[tuple[str, int, int], ...]:
        """Files that hold at least half of these lines: path, lines held, lines asked for; the best three."""
        asked = set(telling(lines))
        counts = Counter(path for line in asked for path in self.where.get(line, ()))
        ranked = sorted(counts.items(), key=lambda at: (-at[1], at[0]))
        return tuple((path, held, len(asked)) for path, held in ranked[:3] if 2 * held >= len(asked))


def look(git: Git, old: str, new: str, patches: Mapping[str, Sequence[Section]], also: Iterable[bytes] = ()) -> Found:
    """Which of the patches' new lines came upstream since the old tree, and where these and other lines stand.

    Args:
        git: repository with both trees.
        old: the old upstream tree.
        new: the new one.
        patches: sections of each, by name.
        also: further lines to look for in the files that are new or changed.
    """
    added = {
        name: telling(line for section in sections for hunk in section.hunks for line in hunk.added)
        for name, sections in patches.items()
    }
    candidates = frozenset(line for lines in added.values() for line in lines)
    known = _known(git, old, candidates)
    before = {entry.blob for entry in entries(git, old).values()}
    fresh = {path: entry.blob for path, entry in entries(git, new).items() if entry.blob not in before}
    where = _where(git, fresh, (candidates - known) | set(telling(also)))
    return Found(
        {
            name: Share(
                sum(line not in known and bool(where[line]) for line in lines), sum(line not in known for line in lines)
            )
            for name, lines in added.items()
        },
        where,
    )
