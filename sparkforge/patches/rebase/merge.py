"""Three-way merges of trees, without a work tree; git's statuses and object ids are read, never its prose."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkforge.core.errors import CheckFailed
from sparkforge.git.objects import TreeEntry, contents, stage
from sparkforge.git.repository import Git

# New files stay where the patch puts them, whatever folder upstream renamed: other lines of the patch name that place.
_SETTINGS = ("-c", "merge.directoryRenames=false", "-c", "merge.renames=true", "-c", "merge.conflictStyle=diff3")


@dataclass(frozen=True)
class Sides:
    """A path that could not be merged.

    Attributes:
        path: name in the new tree.
        base: entry before the patch; None where there was none.
        ours: entry in the new tree; None where it is gone.
        theirs: entry after the patch; None where the patch deletes it.
    """

    path: str
    base: TreeEntry | None
    ours: TreeEntry | None
    theirs: TreeEntry | None


@dataclass(frozen=True)
class Merged:
    """What a merge gave.

    Attributes:
        tree: the result; with markers in the paths below.
        clean: nothing was left over.
        left: what could not be merged.
    """

    tree: str
    clean: bool
    left: tuple[Sides, ...]


def three_way(git: Git, base: str, ours: str, theirs: str) -> Merged:
    """Merge a patch into a tree.

    Args:
        git: repository with all of them.
        base: commit before the patch, on which `theirs` stands.
        ours: tree that is to take it.
        theirs: commit after the patch.
    """
    head = git.text("commit-tree", ours, "-p", base, stdin=b"ours\n")
    done = git.done(*_SETTINGS, "merge-tree", "--write-tree", "-z", "--no-messages", head, theirs, accept=(0, 1))
    tree, *records = done.out.split(b"\0")
    stages: dict[str, dict[int, TreeEntry]] = {}
    for record in records:
        if record:
            about, _, name = record.partition(b"\t")
            mode, blob, stage = about.decode().split(" ")
            path = name.decode("utf-8", "surrogateescape")
            stages.setdefault(path, {})[int(stage)] = TreeEntry(mode, blob, path)
    left = tuple(Sides(path, at.get(1), at.get(2), at.get(3)) for path, at in stages.items())
    return Merged(tree.decode(), done.code == 0, left)


def settled(git: Git, merged: Merged) -> str:
    """Tree of a merge with what could not be merged settled in the patch's favour."""
    if merged.clean:
        return merged.tree
    with git.staged(merged.tree) as (within, _):
        stage(within, (_favoured(git, sides) for sides in merged.left))
        return within.text("write-tree")


def _favoured(git: Git, sides: Sides) -> TreeEntry:
    """Entry of a file as the patch wants it; mode 0 where it is to go."""
    if sides.theirs is None:
        return TreeEntry("0", "0" * 40, sides.path)
    blob = _theirs(git, sides) if sides.base and sides.ours else sides.theirs.blob
    return TreeEntry(sides.theirs.mode, blob, sides.path)


def _theirs(git: Git, sides: Sides) -> str:
    """Blob of a file in which the patch wins wherever both sides changed."""
    entries = [side for side in (sides.ours, sides.base, sides.theirs) if side]
    data = contents(git, (entry.blob for entry in entries))
    with tempfile.TemporaryDirectory(prefix="sparkforge-merge-") as folder:
        files = [Path(folder, str(number)) for number in range(len(entries))]
        for file, entry in zip(files, entries, strict=True):
            file.write_bytes(data[entry.blob] or b"")
        done = git.done("merge-file", "--theirs", "-p", *files, check=False)
    # 255 is "cannot merge these", a binary file; no other status is left with --theirs.
    made = done.out if done.code == 0 else data[entries[2].blob] or b""
    return git.text("hash-object", "-w", "--stdin", stdin=made)


def applied(git: Git, tree: str, raw: bytes) -> str | None:
    """Tree with a patch applied, at an offset where it must be; None where git refuses it."""
    with git.staged(tree) as (within, _):
        return within.text("write-tree") if _apply(within, raw) else None


def reverses(git: Git, trees: Sequence[str], raw: bytes) -> tuple[bool, ...]:
    """Whether a patch can be taken back out of each of these trees: whether they have it."""
    found = []
    for tree in trees:
        with git.staged(tree) as (within, _):
            found.append(_apply(within, raw, "--reverse", "--check"))
    return tuple(found)


def _apply(git: Git, raw: bytes, *words: str) -> bool:
    done = git.done("apply", "--cached", "--allow-empty", *words, "-", stdin=raw or b"\n", check=False)
    if done.code not in (0, 1):  # 128 where the patch is corrupt: a defect of its bytes, not of the tree
        raise CheckFailed("git apply cannot read a patch", why=done.err.decode(errors="replace").strip()[:200])
    return done.code == 0
