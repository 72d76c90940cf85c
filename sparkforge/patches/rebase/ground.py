"""The two trees that a series is tried on, and how they go on from patch to patch."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkforge.git.objects import TreeEntry, entries
from sparkforge.git.repository import Git
from sparkforge.patches.rebase.item import Item
from sparkforge.patches.rebase.merge import Merged, settled, three_way


@dataclass
class Ground:
    """The old tree with the whole series, and the new one with what it took so far.

    Attributes:
        git: repository.
        old: commits of the old tree and after each patch on it.
        new: the new upstream tree.
        now: it with the patches that it took.
        settled: it with the conflicts of the others settled in their favour.
        failed: patches that it could not take.
    """

    git: Git
    old: tuple[str, ...]
    new: str
    now: str
    settled: str
    failed: list[Item] = field(default_factory=list)
    _merges: dict[tuple[str, str, str], Merged] = field(default_factory=dict)
    _files: dict[str, dict[str, TreeEntry]] = field(default_factory=dict)

    def merge(self, number: int, into: str) -> Merged:
        """Three-way merge of a patch into a tree, from the old tree before it; made once."""
        before, after = self.old[number], self.old[number + 1]
        key = (before, into, after)
        if key not in self._merges:
            self._merges[key] = three_way(self.git, before, into, after)
        return self._merges[key]

    def files(self, tree: str) -> dict[str, TreeEntry]:
        """Entries of a tree, read once."""
        if tree not in self._files:
            self._files[tree] = entries(self.git, tree)
        return self._files[tree]

    def take(self, number: int, tree: str) -> None:
        """Go on from a tree that has the patch."""
        apart = self.settled != self.now
        self.settled = settled(self.git, self.merge(number, self.settled)) if apart else tree
        self.now = tree

    def leave(self, number: int, item: Item) -> None:
        """Go on without a patch; the second tree has it with its conflicts settled."""
        self.settled = settled(self.git, self.merge(number, self.settled))
        self.failed.append(item)
