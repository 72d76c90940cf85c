"""Applying patch by patch: every tree on the way, or every commit, at the price of the files that are touched.

Each patch is applied to an index of the touched files alone, and one process writes all trees and commits; with a whole
index, git would read, hash and write thousands of entries for every patch. The objects are the same that `write-tree`
and `commit-tree` make.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from sparkforge.git.objects import Made, NewCommit, TreeEntry, entries, stage, staged, write_commits
from sparkforge.git.repository import Git
from sparkforge.patches.diff import split
from sparkforge.patches.mail import Mail

Change = dict[str, TreeEntry | None]


def changes(git: Git, base: str, patches: Sequence[tuple[str, bytes]]) -> tuple[Change, ...]:
    """What each patch does to the tree before it, up to the first that does not apply.

    Args:
        git: repository; new blobs are written there.
        base: tree or commit that the first is applied to.
        patches: file name and bytes of each, in order.
    """
    found: list[Change] = []
    now = _touched(entries(git, base), patches)
    with git.staged() as (index, folder):
        stage(index, now.values())
        for file, raw in patches:
            (folder / file).write_bytes(raw)
            if index.done("apply", "--cached", folder / file, check=False).code != 0:
                break
            before, now = now, staged(index)
            change: Change = {path: entry for path, entry in now.items() if before.get(path) != entry}
            found.append(change | {path: None for path in before if path not in now})
    return tuple(found)


def written(git: Git, start: str, steps: Sequence[tuple[Change, Mail | None]]) -> tuple[Made, ...]:
    """Commits of these changes, one upon the other; no reference is made.

    Args:
        git: repository.
        start: commit that the first stands on; a tree where only trees are wanted.
        steps: changes, each with the mail whose author, date and message the commit takes.
    """
    return write_commits(
        git,
        start,
        [
            NewCommit(
                message=mail.message if mail else b"step\n",
                files={path: (entry.mode, entry.blob) if entry else None for path, entry in change.items()},
                author=f"{mail.author} <{mail.email}> {mail.date}" if mail else "",
            )
            for change, mail in steps
        ],
    )


def _touched(tree: dict[str, TreeEntry], patches: Sequence[tuple[str, bytes]]) -> dict[str, TreeEntry]:
    """Entries of the tree that patches name, and files that stand where a named path has a folder, or the reverse."""
    named = {section.path for name, raw in patches for section in split(name, raw)}
    above = {str(folder) for path in named for folder in PurePosixPath(path).parents}
    below = tuple(f"{path}/" for path in named)
    return {path: entry for path, entry in tree.items() if path in named or path in above or path.startswith(below)}
