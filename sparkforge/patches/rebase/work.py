"""`--write`: the series in a work tree, one commit a patch; it stops where a person must decide, and goes on after.

It stops at a conflict, with markers in the files, and at a patch of which hunks were lost in the merge, with the merge
staged. A patch that upstream has is dropped only if that was accepted; so is one that leaves nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.paths import shown
from sparkforge.core.store import remove
from sparkforge.git.objects import NewCommit, changed, write_commits
from sparkforge.git.repository import Git
from sparkforge.patches.edit import WorkTree, lay, uncommitted
from sparkforge.patches.place import Place
from sparkforge.patches.rebase.engine import chain, judge
from sparkforge.patches.rebase.ground import Ground
from sparkforge.patches.rebase.item import Item, named
from sparkforge.patches.rebase.left import diff
from sparkforge.patches.rebase.outcome import Outcome
from sparkforge.patches.rebase.trial import Trial

_STATE = "sparkforge-rebase.json"
_MARKER = re.compile(rb"^(<<<<<<< |>>>>>>> |\|\|\|\|\|\|\| )", re.MULTILINE)


class State(msgspec.Struct, frozen=True):
    """Where a rebase in a work tree stands.

    Attributes:
        old: commit of the old pin.
        accepted: ids of patches that are dropped.
        pending: file names of the patches to come, in order.
        stopped: the first of them, and why; "" when it waits for nobody.
        head: commit that it stopped on.
        about: what the caller needs to finish.
    """

    old: str
    accepted: tuple[str, ...]
    pending: tuple[str, ...]
    stopped: str
    head: str
    about: dict[str, str]


@dataclass(frozen=True)
class Work:
    """A rebase in a work tree.

    Attributes:
        at: the new pin; its folder is where the new series goes.
        items: the old series.
        path: the work tree.
        beside: patches of other series of the stack, which may depend on these.
    """

    at: Place
    items: tuple[Item, ...]
    path: Path
    beside: tuple[Item, ...] = ()

    @property
    def git(self) -> Git:
        """Git on the objects of the work tree and of the store, without the work tree."""
        return Git(self.path / ".git")

    def begin(self, old: str, accepted: frozenset[str], about: dict[str, str]) -> State:
        """Make the work tree and carry patches until one stops it.

        Raises:
            BadInput: there is a work tree or a series of that release already.
            CheckFailed: a patch has nothing left to do and its drop was not accepted.
        """
        if self.path.exists():
            raise BadInput(f"{shown(self.path)} is there", do="invoke rebase --continue, or --abort")
        if self.at.folder.exists():
            raise BadInput(f"{shown(self.at.folder)} is there", why="it holds a series of that release already")
        done = named(self.items, accepted)
        verdicts = judge(self.at.git, old, self.at.commit, self.items, accepted, beside=self.beside).verdicts
        for one in verdicts:
            if one.dropped and one.dependants:
                raise CheckFailed(
                    f"{one.id} cannot be dropped",
                    why=f"{', '.join(one.dependants)} depend on it and stay",
                    do="drop them too, or take it out of their Depends-on",
                )
        needless = [
            one.id
            for one in verdicts
            if one.outcome in {Outcome.UPSTREAMED, Outcome.EMPTY} and one.applies and not one.dropped
        ]
        if needless:
            raise CheckFailed(
                f"nothing is left of {', '.join(needless)} on {self.at.name} {self.at.folder.name}",
                why="a patch is dropped only where that was accepted",
                do=f"add --accept {','.join(needless)}, after a look at the report",
            )
        self.path.mkdir(parents=True)
        lay(self.at, self.path, self.at.commit, "")
        names = tuple(item.name for item in self.items)
        return self._on(State(old, tuple(sorted(done)), names, "", self.at.commit, about))

    def state(self) -> State:
        """Where it stands.

        Raises:
            BadInput: there is no such work tree.
        """
        file = self.path / ".git" / _STATE
        if not file.is_file():
            raise BadInput(f"no rebase is under way in {shown(self.path)}", do="invoke rebase ... --write")
        return msgspec.json.decode(file.read_bytes(), type=State)

    def proceed(self, accepted: frozenset[str]) -> State:
        """Commit what a person settled, or drop the patch where that is accepted, and go on.

        Raises:
            BadInput: conflicts or markers are left, or more than one commit was made.
            CheckFailed: nothing is left of the patch and its drop was not accepted.
        """
        state = self.state()
        drops = tuple(sorted({*state.accepted, *named(self.items, accepted)}))
        stay = [item for item in (*self.items, *self.beside) if item.id not in drops]
        if needing := [item.id for item in stay if set(item.depends_on) & set(drops)]:
            raise CheckFailed(
                f"{', '.join(drops)} cannot be dropped",
                why=f"{', '.join(needing)} depend on it and stay",
                do="drop them too",
            )
        state = msgspec.structs.replace(state, accepted=drops)
        if not state.stopped:
            return self._on(state)
        item = self._item(state.pending[0])
        tree = Git(self.path / ".git", self.path)
        if item.id in drops:
            tree.run("reset", "--quiet", "--hard", state.head)
            tree.run("clean", "--quiet", "-fd")
            return self._on(state)
        self._settled(tree, item, state)
        tree.run("add", "--all")
        head = tree.id("HEAD")
        if head != state.head and tree.id("HEAD^") != state.head:
            where = shown(self.path)
            raise BadInput(f"{where} has more commits than the one for {item.id}", do=f"git reset --soft {state.head}")
        made = tree.text("write-tree")
        if made == tree.id(f"{state.head}^{{tree}}"):
            raise CheckFailed(
                f"nothing is left of {item.id}", why="its drop was not accepted", do=f"add --accept {item.id}"
            )
        self._commit(item, state.head, made)
        pending = msgspec.structs.replace(state, pending=state.pending[1:], stopped="")
        return self._on(pending)

    def abort(self) -> None:
        """Remove the work tree; nothing else was written."""
        self.state()
        remove(self.path)

    def _item(self, name: str) -> Item:
        return next(item for item in self.items if item.name == name)

    def _settled(self, tree: Git, item: Item, state: State) -> None:
        """Raise if a file that the person touched still holds conflict markers."""
        files = {*uncommitted(WorkTree(self.path, "", "")), *changed(tree, state.head, "HEAD")}
        marked = [
            path
            for path in sorted(files)
            if (self.path / path).is_file() and _MARKER.search((self.path / path).read_bytes())
        ]
        if marked:
            where = ", ".join(marked[:3])
            raise BadInput(f"{item.id} is not settled", why=f"conflict markers in {where}", do="edit, then --continue")

    def _on(self, state: State) -> State:
        """Carry patches from the head until one stops it; the work tree shows where."""
        git = self.git
        numbers = {item.name: number for number, item in enumerate(self.items)}
        old = chain(git, state.old, self.items)
        new = git.id(f"{self.at.commit}^{{tree}}")
        head = git.id("refs/heads/series")
        pending = list(state.pending)
        stopped = ""
        shows: str | None = None
        while pending and not stopped:
            item = self._item(pending[0])
            now = git.id(f"{head}^{{tree}}")
            if item.id not in state.accepted:
                ground = Ground(git, old, new, now, now)
                verdict, tree = Trial(ground, numbers[item.name], item).run()
                if tree is None:
                    stopped = f"{item.id} does not fit: {len(verdict.conflicts) or 'some'} hunks conflict"
                    continue
                if tree == now:
                    stopped = f"nothing is left of {item.id}: add --accept {item.id}"
                    continue
                was = sum(len(section.hunks) for section in item.sections)
                left = sum(len(section.hunks) for section in diff(git, now, tree))
                if left < was:
                    stopped, shows = f"{item.id} shrank from {was} hunks to {left}", tree
                    continue
                head = self._commit(item, head, tree)
            pending.pop(0)
        self._show(head, old[numbers[pending[0]] + 1] if pending else "", shows)
        state = msgspec.structs.replace(state, pending=tuple(pending), stopped=stopped, head=head)
        (self.path / ".git" / _STATE).write_bytes(msgspec.json.format(msgspec.json.encode(state)))
        return state

    def _commit(self, item: Item, head: str, tree: str) -> str:
        """Commit of a patch with its own author, date and message."""
        mail = item.mail
        if mail is None:
            raise BadInput(f"{item.name} has no letter", why="only a series of mails can be written")
        files = {path: new for path, (_, new) in changed(self.git, head, tree).items()}
        author = f"{mail.author} <{mail.email}> {mail.date}"
        (made,) = write_commits(self.git, head, [NewCommit(mail.message, files, author)])
        self.git.run("update-ref", "refs/heads/series", made.commit)
        return made.commit

    def _show(self, head: str, patch: str, staged: str | None) -> None:
        """Bring the work tree to a head, with the patch that stopped it: its merge staged, or with its conflicts."""
        tree = Git(self.path / ".git", self.path)
        tree.run("update-ref", "refs/heads/series", head)
        tree.run("reset", "--quiet", "--hard", head)
        if staged is not None:
            tree.run("read-tree", "-u", "--reset", staged)
        elif patch:
            words = ("-c", "merge.conflictStyle=diff3", "-c", "merge.directoryRenames=false")
            tree.done(*words, "cherry-pick", "--no-commit", patch, accept=(0, 1))
