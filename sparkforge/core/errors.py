"""Every failure that a user can meet.

The policy: an error is one line of what went wrong, one of why, one of what to do about it. The class
decides the exit status, and `sparkforge.core.program` is the one place that turns it into one: 0 done, 1 a check
failed, 2 wrong usage or bad input, 3 the environment lacks something. A traceback is a bug of ours.
"""

from __future__ import annotations


class SparkforgeError(Exception):
    """A failure with its sentence, its reason and its remedy.

    Attributes:
        what: one line, without a full stop: what failed.
        why: one line: the fact behind it. May be empty.
        do: the command or the edit that mends it. May be empty.
    """

    status = 1

    def __init__(self, what: str, *, why: str = "", do: str = "") -> None:
        self.what = what
        self.why = why
        self.do = do
        super().__init__(what)

    def __str__(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.do:
            lines.append(f"  do:  {self.do}")
        return "\n".join(lines)


class CheckFailed(SparkforgeError):  # noqa: N818  the name is the verdict that users read
    """Something was looked at and is not as it must be."""

    status = 1


class BadInput(SparkforgeError):  # noqa: N818  as above
    """Wrong usage, or a file of the user's that says something impossible."""

    status = 2


class EnvironmentLacks(SparkforgeError):  # noqa: N818  as above
    """The machine lacks a program, a right, disk or an index; `do` says the command that mends it."""

    status = 3
