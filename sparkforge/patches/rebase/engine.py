"""The verdict on every patch of a series on another tree, past the first that does not fit.

Each patch is tried upon the new tree with the patches before it that it took. Where one cannot be taken, a second tree
goes on with its conflicts settled in the patch's favour: what fits there and not on the first fails only because of an
earlier patch. Nothing is dropped here but what the caller accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.git.repository import Git
from sparkforge.patches import walk
from sparkforge.patches.rebase.dependants import weighed
from sparkforge.patches.rebase.ground import Ground
from sparkforge.patches.rebase.item import Item, named
from sparkforge.patches.rebase.lines import Found, look
from sparkforge.patches.rebase.outcome import Conflict, Evidence, Outcome, Probe, Verdict
from sparkforge.patches.rebase.trial import Trial


@dataclass(frozen=True)
class Judged:
    """A whole series.

    Attributes:
        verdicts: one a patch, in order.
        tree: the new tree with every patch that it took.
    """

    verdicts: tuple[Verdict, ...]
    tree: str


def judge(
    git: Git,
    old: str,
    new: str,
    items: Sequence[Item],
    accepted: frozenset[str] = frozenset(),
    *,
    beside: Sequence[Item] = (),
) -> Judged:
    """Try every patch of a series on another tree.

    Args:
        git: repository with both trees; what is made is written there, no reference is.
        old: commit that the series is for.
        new: commit or tree that is to take it.
        items: the patches, in order.
        accepted: ids or file names of patches that are dropped: they are tried, the others go on without them.
        beside: patches of other series, which may depend on these.

    Raises:
        BadInput: an accepted name is no patch of the series.
        CheckFailed: a patch does not apply to the old tree.
    """
    dropped = named(items, accepted)
    if unknown := dropped - {item.id for item in items}:
        raise BadInput(
            f"{', '.join(sorted(unknown))} is no patch of the series", why=", ".join(item.id for item in items)
        )
    base = git.text("rev-parse", f"{new}^{{tree}}")
    ground = Ground(git, chain(git, old, items), base, base, base)
    verdicts: list[Verdict] = []
    for number, item in enumerate(items):
        verdict, tree = Trial(ground, number, item).run()
        verdicts.append(msgspec.structs.replace(verdict, dropped=item.id in dropped))
        if item.id in dropped:
            continue
        if tree is None:
            ground.leave(number, item)
        else:
            ground.take(number, tree)
    told = _with_lines(ground, items, verdicts)
    return Judged(weighed(told, [*items, *beside]), ground.now)


def chain(git: Git, old: str, items: Sequence[Item]) -> tuple[str, ...]:
    """The old commit and one more for each patch upon it.

    Raises:
        CheckFailed: a patch does not apply.
    """
    full = [item for item in items if item.raw]
    found = walk.changes(git, old, [(item.name, item.raw) for item in full])
    if len(found) < len(full):
        raise CheckFailed(
            f"{full[len(found)].name} does not apply to the tree that the series is for",
            why=f"the {len(found)} patches before it do",
            do="name the tree that the series was made on",
        )
    change_of = dict(zip((item.name for item in full), found, strict=True))
    made = walk.written(git, old, [(change_of.get(item.name, {}), item.mail) for item in items])
    return (old, *(one.commit for one in made))


def _with_lines(ground: Ground, items: Sequence[Item], verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts with line evidence, and with the files that hold what a vanished file held."""
    if all(one.applies for one in verdicts):
        return list(verdicts)
    vanished = [line for one in verdicts for c in one.conflicts if not c.now for line in _old_lines(c)]
    found = look(ground.git, ground.old[0], ground.new, {item.name: item.sections for item in items}, vanished)
    return [one if one.applies else _told(one, found) for one in verdicts]


def _told(one: Verdict, found: Found) -> Verdict:
    share = found.shares[one.patch]
    tests = [*one.evidence, Evidence(Probe.LINES, share.most, f"{share.there} of {share.of} new lines")]
    outcome = one.outcome
    if share.most and outcome in {Outcome.CONFLICT, Outcome.CASCADE}:
        outcome = Outcome.UPSTREAMED if share.nearly_all else Outcome.PARTLY
    shown = []
    for conflict in one.conflicts:
        holders = () if conflict.now else found.holders(_old_lines(conflict))
        names = tuple(f"{path} ({held} of {of} lines)" for path, held, of in holders)
        shown.append(msgspec.structs.replace(conflict, elsewhere=names))
    tests.sort(key=lambda one: list(Probe).index(one.probe))
    return msgspec.structs.replace(one, outcome=outcome, evidence=tuple(tests), conflicts=tuple(shown))


def _old_lines(conflict: Conflict) -> list[bytes]:
    return [line[1:].encode() for line in conflict.wanted if line[:1] in {" ", "-"}]
