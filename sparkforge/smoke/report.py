"""The report of a smoke run: a table for people, JSON for programs."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from sparkforge.core.console import table
from sparkforge.core.errors import CheckFailed
from sparkforge.smoke.checks import Check, CheckVerdict


@dataclass(frozen=True)
class SmokeReport:
    """The report of a smoke run.

    Attributes:
        subject: image or virtual environment.
        model: directory of the weights, or `tiny gpt-oss`.
        checks: in the order in which they ran; a name is followed by `as UID` in the second run.
        seconds: of the whole run.
        log: last lines of the server that failed; empty when all passed.
    """

    subject: str
    model: str
    checks: tuple[Check, ...]
    seconds: float
    log: str = ""

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(one.verdict is not CheckVerdict.FAILED for one in self.checks)

    @property
    def summary(self) -> str:
        """The report in one line."""
        failed = [one.name for one in self.checks if one.verdict is CheckVerdict.FAILED]
        ran = sum(one.verdict is not CheckVerdict.SKIPPED for one in self.checks)
        verdict = f"FAILED: {', '.join(failed)}" if failed else f"all {ran} checks passed"
        return f"{self.subject}: {verdict} ({self.seconds:.0f} s)"

    def json(self) -> bytes:
        """The report for programs."""
        return msgspec.json.encode({**msgspec.to_builtins(self), "passed": self.passed})

    def table(self) -> str:
        """The report for people: a line for each check."""
        rows = [(one.name, one.verdict.value, one.said.partition("\n")[0]) for one in self.checks]
        return table(("check", "verdict", "what was seen"), rows)

    def demand(self) -> None:
        """Raise if a check failed, with the server's last lines.

        Raises:
            CheckFailed: a check failed.
        """
        for one in self.checks:
            if one.verdict is CheckVerdict.FAILED:
                raise CheckFailed(f"smoke of {self.subject}: {one.name} failed", why=f"{one.said}\n{self.log}")
