"""What can become of a patch on another tree, and the evidence for it."""

from __future__ import annotations

from enum import Enum

import msgspec


class Outcome(Enum):
    """What became of a patch."""

    CLEAN = "clean"  # applies exactly
    MOVED = "moved"  # applies at an offset
    MERGED = "merged"  # by a three-way merge
    UPSTREAMED = "upstreamed"  # the new tree has its whole change
    PARTLY = "partly upstreamed"  # the new tree has some of it
    CONFLICT = "conflict"  # upstream changed the same lines
    CASCADE = "cascade"  # fails only because an earlier patch did
    OBSOLETE = "obsolete"  # its files are gone, or its Drop-When holds
    EMPTY = "empty"  # changes nothing, and not because upstream has it

    @property
    def advice(self) -> str:
        """What a person is asked to do."""
        if self in {Outcome.CLEAN, Outcome.MOVED, Outcome.MERGED}:
            return "carry"
        if self in {Outcome.UPSTREAMED, Outcome.OBSOLETE, Outcome.EMPTY}:
            return "drop"
        return {Outcome.PARTLY: "keep what is left", Outcome.CASCADE: "after the others"}.get(self, "resolve")


class Probe(Enum):
    """The tests, in the order in which they are made."""

    STRICT = "strict apply"
    REVERSE = "reverse apply"
    MERGE = "three-way merge"
    EMPTY = "empty after the merge"
    LINES = "its lines upstream"
    FILES = "its files"
    ALONE = "without the earlier ones"
    DROP_WHEN = "Drop-When"
    INTENT = "its test without it"


class Evidence(msgspec.Struct, frozen=True):
    """One test and what it gave.

    Attributes:
        probe: which test.
        holds: whether what it asks is so.
        said: the fact behind it.
    """

    probe: Probe
    holds: bool
    said: str = ""


class Origin(msgspec.Struct, frozen=True):
    """Where an upstream change came from.

    Attributes:
        release: the first release with it; "" where a commit is known.
        commit: the commit that made it; "" where no clone was at hand.
        title: subject of that commit.
    """

    release: str = ""
    commit: str = ""
    title: str = ""

    def __str__(self) -> str:
        return f"commit {self.commit[:12]} ({self.title})" if self.commit else f"release {self.release}"


class Conflict(msgspec.Struct, frozen=True):
    """A hunk that does not fit, and what stands in its place.

    Attributes:
        path: the file, as the patch names it.
        now: the file in the new tree; "" where it is gone.
        why: what upstream did to it.
        hunk: number of the hunk in the file, from 1; 0 where it is about the whole file.
        line: first line of the hunk.
        wanted: the hunk: its lines with " ", "-" or "+" before them.
        at: first line of `instead` in the new tree; 0 where there is none.
        instead: the upstream lines that took the place of the hunk's old ones.
        elsewhere: other files that hold the hunk's old lines now.
        origin: where the upstream change came from; None where nobody looked or nothing was found.
    """

    path: str
    now: str
    why: str
    hunk: int
    line: int
    wanted: tuple[str, ...]
    at: int
    instead: tuple[str, ...]
    elsewhere: tuple[str, ...] = ()
    origin: Origin | None = None


class Verdict(msgspec.Struct, frozen=True):
    """What became of one patch.

    Attributes:
        id: its feature, else its file name.
        patch: its file name.
        title: its subject.
        outcome: see `Outcome`.
        applies: the new tree takes it, so the patches after it were tried upon it.
        evidence: every test that was made, in order.
        conflicts: hunks that do not fit.
        renamed: files that moved, old and new name.
        because: ids of the earlier patches that a cascade waits for.
        dependants: ids of patches that name it in `Depends-on` and stay when it is dropped.
        dropped: the caller accepted its drop.
        remarks: what was odd about the file.
    """

    id: str
    patch: str
    title: str
    outcome: Outcome
    applies: bool
    evidence: tuple[Evidence, ...]
    conflicts: tuple[Conflict, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    because: tuple[str, ...] = ()
    dependants: tuple[str, ...] = ()
    dropped: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def then(self) -> str:
        """What a person is asked to do, or has done."""
        if self.outcome.advice == "drop" and self.dependants and not self.dropped:
            return f"keep for {', '.join(self.dependants)}"
        return "dropped" if self.dropped else self.outcome.advice

    def found(self, probe: Probe) -> Evidence | None:
        """Evidence of a test; None where it was not made."""
        return next((one for one in self.evidence if one.probe is probe), None)
