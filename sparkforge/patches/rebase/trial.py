"""One patch on the new tree: the tests in their order, and what they make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sparkforge.git.objects import contents
from sparkforge.patches import drop
from sparkforge.patches.rebase.ground import Ground
from sparkforge.patches.rebase.hunks import conflicts
from sparkforge.patches.rebase.item import Item
from sparkforge.patches.rebase.left import ambiguous, gone, moved
from sparkforge.patches.rebase.merge import Merged, applied, reverses
from sparkforge.patches.rebase.outcome import Conflict, Evidence, Outcome, Probe, Verdict
from sparkforge.patches.stale import split_lines

_SHOWN = 3


@dataclass
class Trial:
    """A patch while it is tried.

    Attributes:
        ground: the trees.
        number: place of the patch in the series, from 0.
        item: the patch.
        tests: what was found, in order.
    """

    ground: Ground
    number: int
    item: Item
    tests: list[Evidence] = field(default_factory=list)

    def run(self) -> tuple[Verdict, str | None]:
        """The verdict, and the tree that has the patch; None where it cannot be taken."""
        ground = self.ground
        landed, offset = self._strict()
        has = landed is None and self._reverse()
        merged = ground.merge(self.number, ground.now)
        self._note(
            Probe.MERGE, merged.clean, "" if merged.clean else _paths("conflicts in ", [s.path for s in merged.left])
        )
        if merged.clean:
            self._note(Probe.EMPTY, merged.tree == ground.now)
        tree = self._tree(landed, merged)
        shown: list[Conflict] = []
        because: tuple[str, ...] = ()
        if self._changes_nothing() or has or tree == ground.now:
            tree = ground.now
            outcome = Outcome.UPSTREAMED if self._upstream_has_it() else Outcome.EMPTY
        elif tree is None:
            because = self._cascade()
            shown = [] if because else self._conflicts(merged)
            outcome = Outcome.CASCADE if because else Outcome.CONFLICT
            if self._files_gone(merged):
                outcome = Outcome.OBSOLETE
        elif tree == landed:
            outcome = Outcome.MOVED if offset else Outcome.CLEAN
        else:
            outcome = Outcome.PARTLY if self._partly(tree) else Outcome.MERGED
        if self._needless() and outcome not in {Outcome.UPSTREAMED, Outcome.EMPTY}:
            outcome = Outcome.OBSOLETE
        verdict = Verdict(
            id=self.item.id,
            patch=self.item.name,
            title=self.item.title,
            outcome=outcome,
            applies=tree is not None,
            evidence=tuple(self.tests),
            conflicts=tuple(shown),
            renamed=tuple(self._renames(merged)),
            because=because,
            remarks=self.item.remarks,
        )
        return verdict, tree

    def _note(self, test: Probe, holds: bool, said: str = "") -> bool:
        self.tests.append(Evidence(test, holds, said))
        return holds

    def _strict(self) -> tuple[str | None, bool]:
        """Tree by plain apply, and whether a hunk moved."""
        landed = applied(self.ground.git, self.ground.now, self.item.raw)
        away = moved(self.ground.git, self.ground.now, self.item.sections) if landed else []
        self._note(Probe.STRICT, landed is not None, _paths(f"{len(away)} hunks moved: ", away))
        return landed, bool(away)

    def _reverse(self) -> bool:
        trees = dict.fromkeys((self.ground.new, self.ground.now))
        has = dict(zip(trees, reverses(self.ground.git, list(trees), self.item.raw), strict=True))
        beside = "" if has[self.ground.new] else "with the patches before it"
        return self._note(Probe.REVERSE, any(has.values()), beside if any(has.values()) else "")

    def _tree(self, landed: str | None, merged: Merged) -> str | None:
        """The tree that has the patch, by apply where it is sure of its place, else by merge.

        A block that upstream moved stands in one place, and a merge cannot follow it. Where the old lines stand in
        several places git takes the nearest, and only the merge knows which one it was.
        """
        if landed is not None and (
            landed == merged.tree or not ambiguous(self.ground.git, self.ground.now, self.item.sections)
        ):
            return landed
        return merged.tree if merged.clean else None

    def _changes_nothing(self) -> bool:
        said = self.ground.git.text("rev-parse", *(f"{self.ground.old[self.number + at]}^{{tree}}" for at in (0, 1)))
        return len(set(said.split())) == 1

    def _upstream_has_it(self) -> bool:
        """Whether it is upstream, and no earlier patch, that leaves this one nothing to do."""
        if self._changes_nothing():
            return False
        ground = self.ground
        if ground.now == ground.new or reverses(ground.git, [ground.new], self.item.raw)[0]:
            return True
        alone = ground.merge(self.number, ground.new)
        return alone.clean and alone.tree == ground.new

    def _cascade(self) -> tuple[str, ...]:
        """Ids of the earlier patches that this one waits for; none where it fails by itself."""
        ground = self.ground
        near = tuple(item.id for item in ground.failed if item.paths & self.item.paths)
        if ground.failed:
            free = ground.merge(self.number, ground.settled).clean
            said = "merges once the earlier conflicts are settled" if free else "conflicts then too"
            if self._note(Probe.ALONE, free, said):
                return near or tuple(item.id for item in ground.failed)
        if ground.now != ground.new:
            free = applied(ground.git, ground.new, self.item.raw) is not None
            if self._note(Probe.ALONE, free, f"{'applies' if free else 'does not apply'} to the new tree alone"):
                return near or ("an earlier patch",)
        return ()

    def _conflicts(self, merged: Merged) -> list[Conflict]:
        """Hunks that meet an upstream change; those that only miss an earlier patch are left out."""
        ground = self.ground
        base = ground.files(ground.old[self.number])
        found = conflicts(ground.git, merged.left, self.item.sections, base)
        if ground.settled == ground.now:
            return found
        beside = conflicts(ground.git, ground.merge(self.number, ground.settled).left, self.item.sections, base)
        own = {(one.path, one.hunk) for one in beside}
        return [one for one in found if (one.path, one.hunk) in own]

    def _files_gone(self, merged: Merged) -> bool:
        """Whether every file that the patch changes is gone upstream and none was renamed; a new file keeps a patch."""
        if any(section.created for section in self.item.sections):
            return False
        deleted = {sides.path for sides in merged.left if sides.ours is None} - set(self.ground.files(self.ground.new))
        if not self.item.paths <= deleted & set(self.ground.files(self.ground.old[0])):
            return False
        return self._note(Probe.FILES, True, _paths("gone: ", sorted(self.item.paths)))

    def _partly(self, tree: str) -> bool:
        there = gone(self.ground.git, self.ground.now, tree, self.item.sections)
        return bool(there) and self._note(Probe.LINES, True, _paths("hunks that changed nothing: ", there))

    def _needless(self) -> bool:
        fact = self.item.drop_when
        return bool(fact) and self._note(Probe.DROP_WHEN, drop.holds(self.ground.git, self.ground.new, fact), fact)

    def _renames(self, merged: Merged) -> list[tuple[str, str]]:
        """Files that the merge found under another name."""
        ground = self.ground
        there, base = ground.files(ground.now), ground.files(ground.old[self.number])
        away = [path for path in sorted(self.item.paths) if path in base and path not in there]
        if not away:
            return []
        changed = set(ground.git.text("diff-tree", "-r", "--name-only", ground.now, merged.tree).splitlines())
        changed |= {sides.path for sides in merged.left if sides.base and sides.ours}
        candidates = sorted(changed - self.item.paths)
        if not candidates:
            return []
        names = {path: f"{ground.old[self.number]}:{path}" for path in away}
        others = {path: f"{ground.now}:{path}" for path in candidates}
        data = contents(ground.git, [*names.values(), *others.values()])
        lines = {path: set(split_lines(data[name] or b"")) for path, name in (names | others).items()}
        best = {path: max(candidates, key=lambda name: len(lines[path] & lines[name])) for path in away}
        return [
            (old, new)
            for old, new in best.items()
            if 2 * len(lines[old] & lines[new]) >= min(len(lines[old]), len(lines[new]))
        ]


def _paths(before: str, paths: Sequence[str]) -> str:
    if not paths:
        return ""
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return before + ", ".join(paths[:_SHOWN]) + more
