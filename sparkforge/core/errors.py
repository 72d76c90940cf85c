"""Every failure that a user can meet.

The policy: an error says in one line each what went wrong, why, and what to do. Its class decides the exit status,
which `sparkforge.core.program` sets: 0 done, 1 a check failed, 2 wrong usage or bad input, 3 the environment lacks
something. A traceback is a bug.
"""

from __future__ import annotations


class SparkforgeError(Exception):
    """A failure.

    Attributes:
        what: what failed, in one line without a full stop.
        why: the fact behind it; may be empty.
        do: the command or edit that fixes it; may be empty.
    """

    status = 1

    def __init__(self, what: str, *, why: str = "", do: str = "") -> None:
        self.what = what
        self.why = why
        self.do = do
        super().__init__(what)

    def __str__(self) -> str:
        return self.what + (f"\n  why: {self.why}" if self.why else "") + (f"\n  do:  {self.do}" if self.do else "")


class CheckFailed(SparkforgeError):  # noqa: N818  the name is the verdict that users read
    """A check found something wrong."""

    status = 1


class BadInput(SparkforgeError):  # noqa: N818  as above
    """Wrong usage, or a file of the user's with impossible content."""

    status = 2


class EnvironmentLacks(SparkforgeError):  # noqa: N818  as above
    """The machine lacks a program, a permission, disk space or an index; `do` is the command that fixes it."""

    status = 3
