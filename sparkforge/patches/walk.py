"""A series on its pin: as a tree, as commits, and as patches again.

`tree` gives one `git apply --cached` all patches as separate arguments: in one stream, git could take a rename and a
new file for one change, with a wrong tree and status 0. `commits` and `applied` go patch by patch, on an index of only
the files that the series touches; one process then writes all trees and commits. With a whole index, git would read,
hash and write thousands of entries for every patch. The same pin and series give the same ids on every machine.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sparkforge.core.errors import CheckFailed
from sparkforge.git.objects import Made, NewCommit, TreeEntry, entries, stage, staged, write_commits
from sparkforge.git.repository import Git
from sparkforge.patches import stale, traps
from sparkforge.patches.diff import split
from sparkforge.patches.mail import Mail, read
from sparkforge.patches.series import Patch, Series

Change = dict[str, TreeEntry | None]

FLAGS = (
    "--zero-commit",  # the id of a commit says nothing about the patch
    "--no-signature",  # nor does git's version
    "--full-index",  # whole blob ids: equal content found by id, whatever else a repository holds
    "--no-renames",  # a rename hides what is patched from the next upstream
    "--no-stat",
    "--no-numbered",  # "3/7" would change every patch when one is added
    "--diff-algorithm=myers",
    "-U3",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--binary",  # binary content with its data; text comes out the same
)

_INDEX = re.compile(rb"^index [0-9a-f]{40}\.\.[0-9a-f]{40}", re.MULTILINE)


@dataclass(frozen=True)
class Step:
    """A patch with the id of its commit and of the tree after it."""

    mail: Mail
    commit: str
    tree: str


def tree(git: Git, base_tree: str, series: Series) -> str:
    """Tree id of a pin (a tree or commit) with the series applied.

    Raises:
        BadInput: a patch contains a trap.
        CheckFailed: a patch does not apply; the message names patch, file and place.
    """
    _refuse_traps(series)
    with git.staged(base_tree) as (index, folder):
        for patch in series.patches:  # as files, so that git reads the bytes that were hashed and looked at
            (folder / patch.name).write_bytes(patch.raw)
        files = [folder / patch.name for patch in series.patches]
        if files and index.done("apply", "--cached", *files, check=False).code != 0:
            raise _refused(git, base_tree, series)
        return index.text("write-tree")


def commits(git: Git, base_commit: str, series: Series) -> tuple[Step, ...]:
    """The series as commits on the pin, one a patch; no reference is created.

    Raises:
        BadInput: a patch is not a mail, or contains a trap.
        CheckFailed: a patch does not apply.
    """
    _refuse_traps(series)
    mails = series.mails(git)
    done = changes(git, base_commit, _pairs(series))
    if len(done) < len(mails):
        raise _refused(git, base_commit, series)
    made = written(git, base_commit, list(zip(done, mails, strict=True)))
    return tuple(Step(mail, one.commit, one.tree) for mail, one in zip(mails, made, strict=True))


def applied(git: Git, base: str, series: Series) -> tuple[str, ...]:
    """Tree id after each patch, up to the first that does not apply."""
    start = git.text("rev-parse", f"{base}^{{tree}}")
    done = changes(git, start, _pairs(series))
    return tuple(one.tree for one in written(git, start, [(change, None) for change in done]))


def _pairs(series: Series) -> list[tuple[str, bytes]]:
    return [(patch.name, patch.raw) for patch in series.patches]


def _refuse_traps(series: Series) -> None:
    traps.refuse([fault for name, raw in _pairs(series) for fault in traps.faults(name, raw)], series.title)


def _refused(git: Git, base: str, series: Series) -> CheckFailed:
    """The error for the first patch that does not apply, explained by our own comparison."""
    trees = (base, *applied(git, base, series))
    patch = series.patches[len(trees) - 1]
    mail = read(git, patch.name, patch.raw)
    found = stale.faults(git, [(mail, trees[-1])])
    why = (
        "; ".join(f"{fault.what}: {fault.why}" for fault in found)
        or "git refuses it, though every hunk is in its place"
    )
    return CheckFailed(
        f"{series.title}: {patch.name} does not apply", why=why, do=f"invoke patches.edit {series.upstream}"
    )


def changes(git: Git, base: str, patches: Sequence[tuple[str, bytes]]) -> tuple[Change, ...]:
    """What each patch (file name and bytes) changes on a tree or commit, up to the first that does not apply."""
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
    """Commits of these changes, with author, date and message of their mails, on a commit (or tree, for trees only)."""
    commits = [
        NewCommit(mail.message, change, mail.who) if mail else NewCommit(b"step\n", change) for change, mail in steps
    ]
    return write_commits(git, start, commits)


def _touched(tree: dict[str, TreeEntry], patches: Sequence[tuple[str, bytes]]) -> dict[str, TreeEntry]:
    """Files that patches name, and files in the way of one: where a named path needs a folder, or is one."""
    named = {section.path for name, raw in patches for section in split(name, raw)}
    above = {str(folder) for path in named for folder in PurePosixPath(path).parents}
    below = tuple(f"{path}/" for path in named)
    return {path: entry for path, entry in tree.items() if path in named or path in above or path.startswith(below)}


def formatted(git: Git, base: str, head: str) -> tuple[Patch, ...]:
    """Patches of the commits after `base` up to `head`, with the names and bytes of an export."""
    with tempfile.TemporaryDirectory(prefix="sparkforge-format-") as folder:
        # As bare, so that attributes in the tree have no effect.
        words = ("-c", "core.bare=true", "format-patch", *FLAGS, "--output-directory", folder)
        said = git.text(*words, f"{base}..{head}", cwd=Path(folder))
        return tuple(Patch(Path(line).name, Path(line).read_bytes()) for line in said.splitlines())


def same(one: bytes, other: bytes) -> bool:
    """Whether two patches are equal but for the blob ids of their `index` lines.

    Those ids change with any other line of a file, so a patch that fits a new pin keeps its bytes and is canonical.
    """
    return _INDEX.sub(b"", one) == _INDEX.sub(b"", other)
