"""A series of a stack on another release: both resolved, every patch tried, conflicts traced."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from sparkforge.core.errors import BadInput
from sparkforge.core.paths import shown
from sparkforge.core.store import Store
from sparkforge.git.objects import contents
from sparkforge.git.of_store import git_of
from sparkforge.inputs import releases
from sparkforge.inputs.recipes import Stack, Upstream
from sparkforge.patches.place import place
from sparkforge.patches.rebase import item
from sparkforge.patches.rebase.dependants import weighed
from sparkforge.patches.rebase.engine import judge
from sparkforge.patches.rebase.foreign import read
from sparkforge.patches.rebase.origin import ByClone, ByRelease, traced
from sparkforge.patches.rebase.outcome import Outcome, Verdict
from sparkforge.patches.rebase.trees import imported
from sparkforge.patches.series import load

_REQUIREMENTS = "requirements/cuda.txt"


class Report(msgspec.Struct, frozen=True):
    """What became of a series.

    Attributes:
        upstream: name, or the folder of a series of somebody else's.
        start: release or tree that the series is for.
        target: release or tree that it was taken to.
        old: git tree id of the one.
        new: git tree id of the other.
        tree: tree id of the new one with every patch that it took.
        verdicts: one a patch, in order.
    """

    upstream: str
    start: str
    target: str
    old: str
    new: str
    tree: str
    verdicts: tuple[Verdict, ...]

    def count(self, *outcomes: Outcome) -> int:
        """How many patches came out so."""
        return sum(one.outcome in outcomes for one in self.verdicts)


def targets(stack: Stack, store: Store, component: str, to: str) -> dict[str, str]:
    """The release that each upstream is to go to.

    Args:
        stack: where the series stand.
        store: for a release whose requirements are read.
        component: one upstream; "" for all of the stack.
        to: a release of the component. For all: a release of the stack's first upstream, and the others go to what it
            requires; or `vllm=0.32.0,flashinfer=0.7.0.post1`.

    Raises:
        BadInput: no such upstream, or a release is not named.
    """
    if component and component not in stack.upstreams:
        raise BadInput(
            f"there is no upstream {component!r} in {stack.name}", why=f"upstreams: {', '.join(stack.upstreams)}"
        )
    if not to:
        raise BadInput("no release is named", do="--to RELEASE")
    if component:
        return {component: to}
    if "=" in to:
        named = dict(part.strip().partition("=")[::2] for part in to.split(","))
        for name in named:
            if name not in stack.upstreams:
                raise BadInput(f"there is no upstream {name!r} in {stack.name}", why=", ".join(stack.upstreams))
        return named
    first, *others = stack.upstreams
    return {first: to} | {name: _required(stack, store, first, to, name) for name in others}


def _required(stack: Stack, store: Store, first: str, release: str, name: str) -> str:
    """The release of another upstream that a release of the first requires."""
    pin = releases.commit(store, first, releases.at(stack.upstreams[first], release))
    git = place(stack, store, first).git
    asked = f"{pin.commit}:{_REQUIREMENTS}"
    text = (contents(git, [asked])[asked] or b"").decode("utf-8", "replace")
    package = stack.upstreams[name].package
    found = re.search(rf"^{re.escape(package)}(?:\[.*\])?==([^\s;#]+)", text, re.MULTILINE)
    if found is None:
        raise BadInput(
            f"{first} {release} does not say which {package} it needs",
            why=f"{_REQUIREMENTS} pins none",
            do=f"--to {first}={release},{name}=RELEASE",
        )
    return found[1]


def carry(
    stack: Stack,
    store: Store,
    wanted: Mapping[str, str],
    accepted: frozenset[str] = frozenset(),
    *,
    origins: bool = True,
    clone: Path | None = None,
) -> tuple[Report, ...]:
    """Take series to other releases; nothing is written but objects of the store.

    Args:
        stack: where the series stand.
        store: releases are fetched into it.
        wanted: release for each upstream.
        accepted: patches that are dropped.
        origins: look where the upstream lines of a conflict came from.
        clone: a clone of the upstream; None for a bisection over its releases.

    Raises:
        BadInput: a release cannot be a target, or an accepted name is no patch.
        CheckFailed: a series does not apply to its own pin.
    """
    places = {name: place(stack, store, name) for name in stack.upstreams}
    known = {name: item.of_series(at.git, load(at.folder)) for name, at in places.items()}
    if unknown := accepted - {word for name in wanted for one in known[name] for word in (one.id, one.name)}:
        raise BadInput(f"{', '.join(sorted(unknown))} is no patch of the series")
    reports = []
    for name, release in wanted.items():
        at, items = places[name], known[name]
        upstream = releases.at(stack.upstreams[name], release)
        pin = releases.commit(store, name, upstream)
        own = accepted & {word for one in items for word in (one.id, one.name)}
        judged = judge(at.git, at.commit, pin.commit, items, own)
        verdicts = judged.verdicts
        pinned = stack.upstreams[name]
        if clone is not None:
            verdicts = traced(verdicts, items, ByClone.open(clone, (pinned.commit, pinned.release), release))
        elif origins:
            between = releases.between(pinned, upstream.release)
            verdicts = traced(verdicts, items, ByRelease(at.git, at.commit, between, _commits(store, name, pinned)))
        reports.append(Report(name, pinned.release, upstream.release, at.tree, pin.tree, judged.tree, verdicts))
    every = [one for items in known.values() for one in items]
    verdict_of = {one.id: one for one in weighed([one for report in reports for one in report.verdicts], every)}
    return tuple(
        msgspec.structs.replace(report, verdicts=tuple(verdict_of[one.id] for one in report.verdicts))
        for report in reports
    )


def _commits(store: Store, name: str, upstream: Upstream) -> Callable[[str], str]:
    """The commit of each release of an upstream, fetched when it is asked for first."""
    return lambda release: releases.commit(store, name, releases.at(upstream, release)).commit


def of_series(store: Store, folder: Path, start: Path, target: Path, accepted: frozenset[str] = frozenset()) -> Report:
    """Take any quilt series from one tree to another.

    Args:
        store: the trees are imported into its repository.
        folder: the folder with the file `series`.
        start: folder or archive that the series is for.
        target: folder or archive that it is taken to.
        accepted: patches that are dropped.

    Raises:
        BadInput: a tree or a patch cannot be read without guessing.
        CheckFailed: a patch does not apply to its own tree.
    """
    git = git_of(store)
    old, new = (imported(git, place) for place in (start, target))
    judged = judge(git, old, new, read(folder, git, old), accepted)
    trees = git.text("rev-parse", f"{old}^{{tree}}", f"{new}^{{tree}}").split()
    return Report(shown(folder), shown(start), shown(target), trees[0], trees[1], judged.tree, judged.verdicts)
