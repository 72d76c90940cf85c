"""Where the upstream side of a conflict came from: the commit, with a clone at hand, else the first release."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sparkforge.core.errors import BadInput
from sparkforge.core.paths import shown
from sparkforge.git.objects import contents
from sparkforge.git.repository import Git
from sparkforge.patches.diff import Hunk
from sparkforge.patches.rebase.item import Item
from sparkforge.patches.rebase.outcome import Conflict, Origin, Verdict
from sparkforge.patches.stale import locate, split_lines
from sparkforge.patches.traps import Trap

_TAGS = ("v{}", "{}", "release-{}")

Find = Callable[[Hunk, Conflict], Origin | None]


def traced(verdicts: Iterable[Verdict], items: Sequence[Item], find: Find) -> tuple[Verdict, ...]:
    """The verdicts, their conflicts with an origin where one is found."""
    hunks = {
        (item.name, section.path, number): hunk
        for item in items
        for section in item.sections
        for number, hunk in enumerate(section.hunks, 1)
    }

    def of(verdict: Verdict, conflict: Conflict) -> Conflict:
        hunk = hunks.get((verdict.patch, conflict.path, conflict.hunk))
        return conflict if hunk is None else msgspec.structs.replace(conflict, origin=find(hunk, conflict))

    return tuple(
        msgspec.structs.replace(one, conflicts=tuple(of(one, conflict) for conflict in one.conflicts))
        for one in verdicts
    )


@dataclass
class ByRelease:
    """Bisection over releases: the first in which the old lines of a hunk no longer stand.

    Attributes:
        git: repository with the releases.
        pin: tree or commit that the series is for.
        releases: names after the pin, in order, up to the one that is rebased to.
        commit: the commit of a release; fetched when it is asked for first.
    """

    git: Git
    pin: str
    releases: Sequence[str]
    commit: Callable[[str], str]
    _files: dict[tuple[str, str], list[bytes] | None] = field(default_factory=dict)

    def __call__(self, hunk: Hunk, conflict: Conflict) -> Origin | None:
        """The release; None where the lines are not the upstream's own, or stand in all of them."""
        if not self._stands(self.pin, conflict.path, hunk):
            return None
        low, high = 0, len(self.releases)  # the first that lacks them is in [low, high]
        while low < high:
            middle = (low + high) // 2
            if self._stands(self.commit(self.releases[middle]), conflict.path, hunk):
                low = middle + 1
            else:
                high = middle
        return Origin(release=self.releases[low]) if low < len(self.releases) else None

    def _stands(self, commit: str, path: str, hunk: Hunk) -> bool:
        key = (commit, path)
        if key not in self._files:
            data = contents(self.git, [f"{commit}:{path}"])[f"{commit}:{path}"]
            self._files[key] = None if data is None else split_lines(data)
        lines = self._files[key]
        return lines is not None and locate(hunk, lines).trap in {None, Trap.OFFSET}


@dataclass(frozen=True)
class ByClone:
    """The commit that took the old lines of a hunk away, from a clone's history.

    Attributes:
        git: the clone.
        old: commit or tag of the old release.
        new: commit or tag of the new one.
    """

    git: Git
    old: str
    new: str

    @classmethod
    def open(cls, folder: Path, old: Sequence[str], new: str) -> ByClone:
        """A clone of the upstream.

        Args:
            folder: work tree or bare repository.
            old: names of the old release, a commit or a version; the first that the clone knows is taken.
            new: version of the new release.

        Raises:
            BadInput: no repository, or it does not hold both releases.
        """
        git = next((Git(place) for place in (folder / ".git", folder) if (place / "HEAD").is_file()), None)
        if git is None:
            raise BadInput(f"{shown(folder)} is no git repository")

        def known(name: str) -> str | None:
            names = [name, *(f"refs/tags/{tag.format(name)}" for tag in _TAGS)]
            return next(
                (one for one in names if git.done("cat-file", "-e", f"{one}^{{commit}}", check=False).code == 0), None
            )

        start, end = next((one for name in old if (one := known(name))), None), known(new)
        if start is None or end is None:
            raise BadInput(
                f"{shown(folder)} does not hold both releases",
                why=f"no commit for {' or '.join(old) if start is None else new}",
                do=f"git -C {shown(folder)} fetch --tags",
            )
        return cls(git, start, end)

    def __call__(self, hunk: Hunk, conflict: Conflict) -> Origin | None:
        """The commit; None where no commit between the releases changed how often the lines stand in the file."""
        lines = hunk.removed or hunk.old[max(hunk.leading - 2, 0) : hunk.leading + 2]
        text = b"".join(lines).decode("utf-8", "surrogateescape")
        said = self.git.text(
            "log", "--reverse", "--format=%H%x09%s", f"-S{text}", f"{self.old}..{self.new}", "--", conflict.path
        )
        if not said:
            return None
        commit, _, title = said.splitlines()[0].partition("\t")
        return Origin(commit=commit, title=title)
