"""`patches.export`: the commits of a work tree become the series again, in canonical bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.paths import shown
from sparkforge.git.repository import Git
from sparkforge.patches import series as lines
from sparkforge.patches import stale, traps, write
from sparkforge.patches.canonical import formatted
from sparkforge.patches.diff import SECTION
from sparkforge.patches.edit import FROM, START, WorkTree, opened, uncommitted
from sparkforge.patches.loss import losses
from sparkforge.patches.mail import Mail, read
from sparkforge.patches.place import Place
from sparkforge.patches.series import ORDER_FILE, Patch, Series

_UNFINISHED = re.compile(r"^(fixup|squash|amend)! ")
_SHOWN = 5


@dataclass(frozen=True)
class Exported:
    """What an export did.

    Attributes:
        upstream: name.
        tree: tree id that the series leads to.
        written: patches that are new or changed.
        kept: patches whose bytes are as they were.
        removed: file names that are no more.
        lost: what was lost, since it was allowed.
    """

    upstream: str
    tree: str
    written: tuple[str, ...]
    kept: tuple[str, ...]
    removed: tuple[str, ...]
    lost: tuple[str, ...]


def export(at: Place, path: Path | None = None, *, allow_loss: bool = False, refresh: bool = False) -> Exported:
    """Write a work tree's commits into the folder of the series.

    Args:
        at: the upstream.
        path: the work tree; where `patches.edit` makes it if None.
        allow_loss: let patches, files and hunks go that were in the series.
        refresh: write every patch anew, those that nobody touched too; stale ones are in any case.

    Raises:
        BadInput: work that no commit holds, a merge, an empty or unfinished commit, a trap.
        CheckFailed: something would be lost, or the series changed since the work tree was made.
    """
    tree = opened(at, path)
    _ready(tree)
    old = lines.load(at.folder) if (at.folder / ORDER_FILE).is_file() else Series(at.name, "", at.folder, ())
    begun = tree.git.done("config", FROM, check=False).text
    if begun != old.sha256 and not allow_loss:
        raise CheckFailed(
            f"{shown(at.folder)} changed since the work tree was made",
            why="an export would undo that",
            do=f"make another work tree (invoke patches.edit {at.name} --path ...) or export with --allow-loss",
        )
    fresh = formatted(Git(tree.path / ".git"), tree.base, tree.head)
    # Git of one version writes a letter without a diff for an empty commit, of another nothing.
    full = [patch for patch in fresh if b"\n" + SECTION in patch.raw]
    if len(full) != int(tree.git.text("rev-list", "--count", f"{tree.base}..{tree.head}")):
        raise BadInput(f"a commit in {shown(tree.path)} changes nothing", do="git rebase -i, and drop it")
    traps.refuse([fault for patch in fresh for fault in traps.faults(patch.name, patch.raw)], at.name)
    patches = fresh if refresh else _kept(at, old, fresh)
    before, after = _mails(at, old.patches), _mails(at, patches)
    lost = losses(before, after)
    if lost and not allow_loss:
        more = f"; {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        raise CheckFailed(
            f"an export of {at.name} would lose what the series holds",
            why="; ".join(lost[:_SHOWN]) + more,
            do="--allow-loss if that is meant",
        )
    reached = lines.tree(at.git, at.tree, Series(at.name, at.folder.name, at.folder, patches))
    wanted = tree.git.text("rev-parse", f"{tree.head}^{{tree}}")
    if reached != wanted:
        raise CheckFailed(
            f"the exported series of {at.name} does not lead to the work tree", why=f"{reached}, not {wanted}"
        )
    if patches != old.patches or old.recorded != reached:
        write.write(at.folder, patches, reached, _notes(at, before, after))
    tree.git.run("config", FROM, Series(at.name, "", at.folder, patches).sha256)
    tree.git.run("update-ref", START, tree.head)
    was = {patch.raw for patch in old.patches}
    return Exported(
        upstream=at.name,
        tree=reached,
        written=tuple(patch.name for patch in patches if patch.raw not in was),
        kept=tuple(patch.name for patch in patches if patch.raw in was),
        removed=tuple(sorted({patch.name for patch in old.patches} - {patch.name for patch in patches})),
        lost=tuple(lost),
    )


def _ready(tree: WorkTree) -> None:
    where = shown(tree.path)
    for name in ("rebase-merge", "rebase-apply", "MERGE_HEAD", "CHERRY_PICK_HEAD"):
        if (tree.path / ".git" / name).exists():
            raise BadInput(
                f"{where} is in the middle of something", why=f".git/{name} is there", do="finish or abort it"
            )
    if left := uncommitted(tree):
        raise BadInput(
            f"{where} holds changes that no commit has",
            why=", ".join(left[:_SHOWN]),
            do="git commit --amend, or invoke patches.new",
        )
    if tree.git.done("merge-base", "--is-ancestor", tree.base, tree.head, accept=(0, 1)).code:
        raise BadInput(f"{where} no longer stands on its pin", why=f"{tree.base} is no ancestor of its head")
    if tree.git.text("rev-list", "--merges", f"{tree.base}..{tree.head}"):
        raise BadInput(f"{where} holds a merge", why="a series is a line of commits", do="git rebase")
    subjects = tree.git.text("log", "--format=%s", f"{tree.base}..{tree.head}").splitlines()
    for subject in subjects:
        if _UNFINISHED.match(subject):
            raise BadInput(f"{where} holds an unfinished commit", why=subject, do="git rebase -i --autosquash")


def _kept(at: Place, old: Series, fresh: tuple[Patch, ...]) -> tuple[Patch, ...]:
    """Exported patches; where one says the same as before, with the bytes that it had."""
    trees = (at.tree, *lines.applied(at.git, at.tree, old))
    steps = lines.commits(at.git, at.commit, old.only([patch.name for patch in old.patches[: len(trees) - 1]]))
    if not steps:
        return fresh
    moved = {fault.patch for fault in stale.faults(at.git, [(s.mail, t) for s, t in zip(steps, trees, strict=False)])}
    same = formatted(at.git, at.commit, steps[-1].commit)
    bytes_of = {
        ours.raw: theirs.raw for ours, theirs in zip(same, old.patches, strict=False) if theirs.name not in moved
    }
    return tuple(Patch(patch.name, bytes_of.get(patch.raw, patch.raw)) for patch in fresh)


def _mails(at: Place, patches: tuple[Patch, ...]) -> tuple[Mail, ...]:
    return tuple(read(at.git, patch.name, patch.raw) for patch in patches)


def _notes(at: Place, before: tuple[Mail, ...], after: tuple[Mail, ...]) -> dict[str, tuple[str, ...]]:
    """Comments of the order file, each above the patch that it stood above, whatever its file is called now."""
    order = at.folder / ORDER_FILE
    if not order.is_file():
        return {}
    known = write.notes(order.read_text(encoding="utf-8"))
    was = {mail.id: mail.name for mail in before}
    moved = {mail.name: known.get(was.get(mail.id, ""), ()) for mail in after if mail.id in was}
    return moved | {"": known[""]}
