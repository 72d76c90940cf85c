"""What the verbs work on: an upstream's pin in a repository, and the folder of its series."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparkforge.core.errors import BadInput
from sparkforge.core.paths import ROOT
from sparkforge.core.store import Store
from sparkforge.git.of_store import git_of
from sparkforge.git.repository import Git
from sparkforge.inputs.recipes import Stack
from sparkforge.inputs.sources import pin_commit


@dataclass(frozen=True)
class Place:
    """One upstream of a stack: the pin's commit and tree in a bare repository, and the folder of its series.

    Paths of `Test:` trailers begin at `root`.
    """

    name: str
    git: Git
    commit: str
    tree: str
    folder: Path
    root: Path = ROOT


def place(stack: Stack, store: Store, name: str) -> Place:
    """Place of an upstream; its source is fetched if the store does not have it.

    Raises:
        BadInput: the stack has no such upstream.
    """
    if name not in stack.upstreams:
        raise BadInput(f"there is no upstream {name!r} in {stack.name}", why=f"upstreams: {', '.join(stack.upstreams)}")
    pin = pin_commit(store, stack, name)
    return Place(name, git_of(store), pin.commit, pin.tree, ROOT / stack.upstreams[name].series)


def places(stack: Stack, store: Store, names: tuple[str, ...] = ()) -> tuple[Place, ...]:
    """Places of these upstreams; of all if none is named."""
    return tuple(place(stack, store, name) for name in names or tuple(stack.upstreams))
