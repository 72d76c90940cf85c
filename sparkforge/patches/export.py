"""`patches.export`: write the commits of a work tree back as the series, in canonical bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.paths import shown
from sparkforge.git.repository import Git
from sparkforge.patches import stale, traps, walk
from sparkforge.patches.diff import SECTION, Hunk, Section
from sparkforge.patches.edit import FROM, START, WorkTree, opened, uncommitted
from sparkforge.patches.mail import Mail, read
from sparkforge.patches.place import Place
from sparkforge.patches.series import ORDER_FILE, Patch, Series, load, notes, write

_UNFINISHED = re.compile(r"^(fixup|squash|amend)! ")
_SHOWN = 5


@dataclass(frozen=True)
class Exported:
    """What an export did: the tree it leads to; patches written, kept and removed; what it lost with --allow-loss."""

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
        path: the work tree; by default where `patches.edit` makes it.
        allow_loss: let the series lose patches, files and hunks.
        refresh: rewrite untouched patches too; stale ones are always rewritten.

    Raises:
        BadInput: uncommitted changes, a merge, an empty or unfinished commit, or a trap.
        CheckFailed: something would be lost, or the series changed since the work tree was made.
    """
    tree = opened(at, path)
    count = _ready(tree)
    old = load(at.folder) if (at.folder / ORDER_FILE).is_file() else Series(at.name, "", at.folder, ())
    begun = tree.git.done("config", FROM, check=False).text
    if begun != old.sha256 and not allow_loss:
        do = f"invoke patches.edit {at.name} --path ANOTHER, or export with --allow-loss"
        why = "an export would undo that change"
        raise CheckFailed(f"{shown(at.folder)} changed since the work tree was made", why=why, do=do)
    fresh = walk.formatted(Git(tree.path / ".git"), tree.base, tree.head)
    # For an empty commit, some versions of git write a mail without a diff, others write nothing.
    if sum(b"\n" + SECTION in patch.raw for patch in fresh) != count:
        raise BadInput(f"a commit in {shown(tree.path)} changes nothing", do="git rebase -i, and drop it")
    traps.refuse([fault for patch in fresh for fault in traps.faults(patch.name, patch.raw)], at.name)
    patches = fresh if refresh else _kept(at, old, fresh)
    before, after = _mails(at, old.patches), _mails(at, patches)
    lost = losses(before, after)
    if lost and not allow_loss:
        more = f"; {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        why = "; ".join(lost[:_SHOWN]) + more
        raise CheckFailed(f"this export of {at.name} would lose parts of the series", why=why, do="--allow-loss")
    reached = walk.tree(at.git, at.tree, Series(at.name, at.folder.name, at.folder, patches))
    wanted = tree.git.id(f"{tree.head}^{{tree}}")
    if reached != wanted:
        why = f"{reached}, not {wanted}"
        raise CheckFailed(f"the exported series of {at.name} does not lead to the work tree", why=why)
    if patches != old.patches or old.recorded != reached:
        write(at.folder, patches, reached, _notes(at, before, after))
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


def _ready(tree: WorkTree) -> int:
    """Number of commits on the pin, all fit to be exported."""
    where = shown(tree.path)
    for name in ("rebase-merge", "rebase-apply", "MERGE_HEAD", "CHERRY_PICK_HEAD"):
        if (tree.path / ".git" / name).exists():
            raise BadInput(
                f"{where} has an unfinished git operation", why=f".git/{name} exists", do="finish or abort it"
            )
    if left := uncommitted(tree):
        what = ", ".join(left[:_SHOWN])
        raise BadInput(f"{where} has uncommitted changes", why=what, do="git commit --amend, or invoke patches.new")
    with tree.git.repo() as repo:
        if not repo.is_ancestor(repo.commit(tree.base), repo.commit(tree.head)):
            raise BadInput(f"{where} is no longer based on its pin", why=f"{tree.base} is not an ancestor of its head")
        commits = list(repo.iter_commits(f"{tree.base}..{tree.head}"))
        for commit in commits:
            if len(commit.parents) > 1:
                raise BadInput(f"{where} has a merge", why=f"{commit}: a series is a line of commits", do="git rebase")
            if _UNFINISHED.match(str(commit.summary)):
                why, do = str(commit.summary), "git rebase -i --autosquash"
                raise BadInput(f"{where} has an unfinished commit", why=why, do=do)
    return len(commits)


def _kept(at: Place, old: Series, fresh: tuple[Patch, ...]) -> tuple[Patch, ...]:
    """The exported patches; one whose content is unchanged keeps its bytes."""
    trees = (at.tree, *walk.applied(at.git, at.tree, old))
    steps = walk.commits(at.git, at.commit, old.only([patch.name for patch in old.patches[: len(trees) - 1]]))
    if not steps:
        return fresh
    moved = {fault.patch for fault in stale.faults(at.git, [(s.mail, t) for s, t in zip(steps, trees, strict=False)])}
    same = walk.formatted(at.git, at.commit, steps[-1].commit)
    bytes_of = {
        ours.raw: theirs.raw for ours, theirs in zip(same, old.patches, strict=False) if theirs.name not in moved
    }
    return tuple(Patch(patch.name, bytes_of.get(patch.raw, patch.raw)) for patch in fresh)


def _mails(at: Place, patches: tuple[Patch, ...]) -> tuple[Mail, ...]:
    return tuple(read(at.git, patch.name, patch.raw) for patch in patches)


def _notes(at: Place, before: tuple[Mail, ...], after: tuple[Mail, ...]) -> dict[str, tuple[str, ...]]:
    """Comments of the order file, each above the same patch as before, even if its file was renamed."""
    order = at.folder / ORDER_FILE
    if not order.is_file():
        return {}
    known = notes(order.read_text(encoding="utf-8"))
    was = {mail.id: mail.name for mail in before}
    moved = {mail.name: known.get(was.get(mail.id, ""), ()) for mail in after if mail.id in was}
    return moved | {"": known[""]}


def losses(old: Sequence[Mail], new: Sequence[Mail]) -> list[str]:
    """What an export would lose, one sentence each: patches, files and hunks.

    An edited hunk is not lost: some of its lines are still in the same file, in this patch or another, or the patch
    has a new hunk there instead.
    """
    twins = {mail.id: mail for mail in new}
    twins |= {mail.subject: mail for mail in new if mail.subject not in twins}
    found = []
    for mail in old:
        twin = twins.get(mail.id) or twins.get(mail.subject)
        if twin is None:
            found.append(f"{mail.name}: the patch is gone")
            continue
        for section in mail.sections:
            elsewhere = _of(new, section.path)
            here = _of([twin], section.path)
            if not elsewhere:
                found.append(f"{mail.name}: {section.path} is no longer changed")
                continue
            known = set().union(*(_lines(hunk) for part in elsewhere for hunk in part.hunks))
            before = set().union(*(_lines(hunk) for part in _of(old, section.path) for hunk in part.hunks))
            vanished = [hunk for hunk in section.hunks if not _lines(hunk) & known]
            appeared = sum(not _lines(hunk) & before for part in here for hunk in part.hunks)
            found += [
                f"{mail.name}: {section.path}: the hunk at line {hunk.line} is gone" for hunk in vanished[appeared:]
            ]
    return found


def _of(mails: Sequence[Mail], path: str) -> list[Section]:
    return [section for mail in mails for section in mail.sections if section.path == path]


def _lines(hunk: Hunk) -> set[bytes]:
    """Changed lines, with their sign; blank ones only where there is nothing else."""
    signed = {b"+" + line for line in hunk.added} | {b"-" + line for line in hunk.removed}
    return {line for line in signed if line[1:].strip()} or signed
