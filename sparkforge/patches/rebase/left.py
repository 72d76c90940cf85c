"""What of a patch is left on another tree: hunks that moved, hunks that changed nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from sparkforge.git.objects import contents
from sparkforge.git.repository import Git
from sparkforge.patches.diff import Section, split
from sparkforge.patches.stale import locate, split_lines


def moved(git: Git, tree: str, sections: Sequence[Section]) -> list[str]:
    """Hunks that are not at their line in a tree to which the patch applies, `path +3` for each."""
    found = []
    for section, lines in _files(git, tree, sections):
        for hunk in section.hunks:
            place = locate(hunk, lines)
            if place.trap is not None:
                found.append(f"{section.path} {(place.line or hunk.line) - hunk.line:+d}")
    return found


def ambiguous(git: Git, tree: str, sections: Sequence[Section]) -> bool:
    """Whether the old lines of a hunk stand in several places, so that git's choice of the nearest is a guess."""
    for section, lines in _files(git, tree, sections):
        for hunk in section.hunks:
            old = list(hunk.old)
            if old and sum(lines[at : at + len(old)] == old for at in range(len(lines) - len(old) + 1)) > 1:
                return True
    return False


def _files(git: Git, tree: str, sections: Sequence[Section]) -> Iterator[tuple[Section, list[bytes]]]:
    changed = [section for section in sections if not section.created]
    data = contents(git, (f"{tree}:{section.path}" for section in changed))
    for section in changed:
        yield section, split_lines(data[f"{tree}:{section.path}"] or b"")


def diff(git: Git, before: str, after: str) -> tuple[Section, ...]:
    """The change between two trees, as a patch has it."""
    words = ("--no-renames", "--no-ext-diff", "--no-color", "--full-index", "--binary", "--diff-algorithm=myers", "-U3")
    return split("the merged patch", git.run("diff-tree", "-r", "-p", *words, before, after))


def gone(git: Git, before: str, after: str, sections: Sequence[Section]) -> list[str]:
    """Hunks of a patch that changed nothing when it was merged, `path:line`: the tree had them.

    Args:
        git: repository.
        before: tree before the merge.
        after: tree after it.
        sections: of the patch.
    """
    left: Counter[bytes] = Counter()
    for section in diff(git, before, after):
        for hunk in section.hunks:
            left.update(b"+" + line for line in hunk.added)
            left.update(b"-" + line for line in hunk.removed)
    found = []
    for section in sections:
        for hunk in section.hunks:
            signed = [b"+" + line for line in hunk.added] + [b"-" + line for line in hunk.removed]
            telling = [line for line in signed if line[1:].strip()] or signed
            if not any(left[line] for line in telling):
                found.append(f"{section.path}:{hunk.line}")
    return found
