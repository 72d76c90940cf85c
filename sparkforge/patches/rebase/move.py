"""Moving a stack's upstream to another release, in one or more runs: work tree, new series, new stack file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparkforge.core.errors import BadInput
from sparkforge.core.paths import ROOT, STACKS, shown
from sparkforge.core.store import Store, remove
from sparkforge.git.of_store import git_of
from sparkforge.inputs import releases
from sparkforge.inputs.recipes import Stack, load_stack
from sparkforge.inputs.sources import imported
from sparkforge.patches.place import Place, place
from sparkforge.patches.rebase import finish, item
from sparkforge.patches.rebase.work import State, Work
from sparkforge.patches.series import load


@dataclass(frozen=True)
class Moved:
    """How far a move came.

    Attributes:
        path: the work tree; gone when the move is done.
        stopped: what a person must decide, and on which patch; "" when the move is done.
        written: the new series, when the move is done.
        stack: the new stack file, when the move is done.
    """

    path: Path
    stopped: str
    written: finish.Written | None = None
    stack: Path | None = None


def begin(
    stack: Stack, store: Store, wanted: dict[str, str], accepted: frozenset[str], *, name: str = "", root: Path = ROOT
) -> Moved:
    """Begin to move one upstream of a stack.

    Args:
        stack: the stack that is moved; it stays as it is.
        store: releases are fetched into it.
        wanted: the upstream and its release.
        accepted: patches that are dropped.
        name: of the new stack; made from the release where it is "".
        root: the checkout.

    Raises:
        BadInput: more than one upstream, no target, or something is in the way.
        CheckFailed: a patch has nothing left to do and its drop was not accepted.
    """
    if len(wanted) != 1:
        raise BadInput("--write moves one upstream at a time", do="--component, then again with --stack NEW --name NEW")
    ((component, release),) = wanted.items()
    release = releases.at(stack.upstreams[component], release).release
    recipe = STACKS / f"{name or f'{component}-{release}'}.yaml"
    if recipe.exists() and recipe != stack.path:
        raise BadInput(f"{shown(recipe)} is there", do="name another stack with --name")
    about = {"stack": str(stack.path), "component": component, "release": release, "recipe": str(recipe)}
    work = _work(stack, store, about, root)
    return _done(stack, store, work, work.begin(place(stack, store, component).commit, accepted, about))


def resume(store: Store, component: str = "", accepted: frozenset[str] = frozenset(), root: Path = ROOT) -> Moved:
    """Go on with a move that stopped.

    Raises:
        BadInput: none is under way, or what stopped it is not settled.
    """
    state = _bare(store, component, root).state()
    stack = load_stack(Path(state.about["stack"]))
    work = _work(stack, store, state.about, root)
    return _done(stack, store, work, work.proceed(accepted))


def abort(store: Store, component: str = "", root: Path = ROOT) -> Path:
    """Give a move up; returns the work tree that was removed."""
    work = _bare(store, component, root)
    work.abort()
    return work.path


def _bare(store: Store, component: str, root: Path) -> Work:
    """The work tree of an upstream, of the only one under way where none is named, without its pin and series."""
    if not component:
        under_way = sorted(path.name for path in (root / "build" / "rebase").glob("*"))
        if len(under_way) != 1:
            why = f"under way: {', '.join(under_way)}" if under_way else "no rebase is under way"
            raise BadInput("no upstream is named", why=why, do="--component UPSTREAM")
        component = under_way[0]
    return Work(Place(component, git_of(store), "", "", root), (), _path(root, component))


def _path(root: Path, component: str) -> Path:
    return root / "build" / "rebase" / component


def _work(stack: Stack, store: Store, about: dict[str, str], root: Path) -> Work:
    name = about["component"]
    old = place(stack, store, name)
    upstream = finish.pinned(store, releases.at(stack.upstreams[name], about["release"]), name)
    pin = imported(store, name, upstream, f"release {upstream.release} of {upstream.package}")
    folder = (root / stack.upstreams[name].series).parent / upstream.release
    at = Place(name, old.git, pin.commit, pin.tree, folder, root)
    others = [place(stack, store, one) for one in stack.upstreams if one != name]
    beside = tuple(patch for one in others for patch in item.of_series(one.git, load(one.folder)))
    return Work(at, item.of_series(old.git, load(old.folder)), _path(root, name), beside)


def _done(stack: Stack, store: Store, work: Work, state: State) -> Moved:
    if state.stopped:
        return Moved(work.path, state.stopped)
    name = work.at.name
    old = place(stack, store, name)
    written = finish.series(work.at, work.path, load(old.folder))
    upstream = finish.pinned(store, releases.at(stack.upstreams[name], state.about["release"]), name)
    place_of = (Path(stack.upstreams[name].series).parent / upstream.release).as_posix()
    recipe = Path(state.about["recipe"])
    finish.stack(stack, name, msgspec.structs.replace(upstream, series=place_of), recipe)
    remove(work.path)
    return Moved(work.path, "", written, recipe)
