"""Trees: pins with their series applied, kept in the store."""

from __future__ import annotations

from dataclasses import dataclass

from sparkforge.core.errors import CheckFailed
from sparkforge.core.hashing import key_of
from sparkforge.core.integrity import seal, sound
from sparkforge.core.paths import ROOT, shown
from sparkforge.core.store import Store
from sparkforge.git.of_store import git_of
from sparkforge.git.repository import Git
from sparkforge.inputs import sources
from sparkforge.inputs.recipes import Stack
from sparkforge.patches import series, walk

_KIND = "trees"


@dataclass(frozen=True)
class Tree:
    """A pin with its series applied; `id` is git's id of the result."""

    name: str
    pin: sources.Pin
    series: series.Series
    id: str


def _key(pin: sources.Pin, patches: series.Series) -> str:
    return key_of("tree 1", pin.tree, patches.sha256)


def known(store: Store, git: Git, name: str, pin: sources.Pin, patches: series.Series) -> Tree | None:
    """The tree, if the store has it.

    Raises:
        CheckFailed: the stored result is damaged.
    """
    folder = store.path(_KIND, _key(pin, patches))
    if not sound(folder):
        return None
    found = (folder / "id").read_text().strip()
    return Tree(name, pin, patches, found) if git.has(f"{found}^{{tree}}") else None


def make(store: Store, git: Git, name: str, pin: sources.Pin, patches: series.Series) -> Tree:
    """Apply the series; the same pin and series give the same id on every machine. Raises as `walk.tree`."""
    made = walk.tree(git, pin.tree, patches)
    with store.writing(_KIND, _key(pin, patches)) as folder:
        (folder / "id").write_text(f"{made}\n")
        seal(folder)
    return Tree(name, pin, patches, made)


def of(store: Store, stack: Stack, name: str) -> Tree:
    """The tree of an upstream, from the store or made now.

    Raises:
        BadInput: as `make`.
        CheckFailed: as `make`, or a source does not match its pin.
    """
    git = git_of(store)
    pin = sources.pin_commit(store, stack, name)
    patches = series.load(ROOT / stack.upstreams[name].series)
    return known(store, git, name, pin, patches) or make(store, git, name, pin, patches)


def recorded(tree: Tree) -> None:
    """Check a tree against the id that its series records.

    Raises:
        CheckFailed: the ids differ, or none is recorded.
    """
    if tree.series.recorded != tree.id:
        raise CheckFailed(
            f"{shown(tree.series.dir)} does not lead to the tree that it records",
            why=f"recorded {tree.series.recorded or 'nothing'}, reached {tree.id}",
            do=f"invoke patches.export {tree.name}",
        )
