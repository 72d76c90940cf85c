"""What test outcomes without and with a patch prove about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

import msgspec


class ProofVerdict(Enum):
    """What one test file proves about one patch."""

    PROVED = "proved"
    PASSES_WITHOUT = "passes without the patch"
    ERRORS_WITHOUT = "fails without the patch, but not by an assertion"
    FAILS_WITH = "fails with the patch"
    SKIPPED = "skipped"


class PytestOutcome(msgspec.Struct, frozen=True):
    """Result of one test function, as `outcomes` writes it; or of pytest itself, if it did not end properly."""

    test: str
    when: str
    outcome: str
    exception: str
    assertion: bool
    why: str

    @property
    def told(self) -> str:
        """One line for messages."""
        name = self.test.rpartition("::")[2]
        return f"{name} ({self.when}): {self.exception or self.outcome}: {self.why[:200]}"


class PatchProof(msgspec.Struct, frozen=True):
    """Whether one test file proves one patch, and why not.

    Attributes:
        proving: tests that fail by assertion without the patch and pass with it.
        passed, skipped: tests that pass, or are skipped (with reasons), with the whole series.
        left_out: other patches that were removed with it.
    """

    id: str
    test: str
    verdict: ProofVerdict
    why: str
    proving: tuple[str, ...]
    passed: tuple[str, ...]
    skipped: tuple[str, ...]
    left_out: tuple[str, ...]
    cached: bool = False

    @property
    def proved(self) -> bool:
        """Whether the verdict is PROVED."""
        return self.verdict is ProofVerdict.PROVED


_SHOWN = 3


def judged(
    name: str,
    test: str,
    left_out: tuple[str, ...],
    without: Sequence[PytestOutcome],
    run_with: Callable[[], Sequence[PytestOutcome]],
) -> PatchProof:
    """Proof from the outcomes of a test file without a patch; only if those are right, it is run with the series."""
    verdict, why = _without(without)
    having: Sequence[PytestOutcome] = ()
    fails = {one.test for one in without if one.assertion}
    if verdict is ProofVerdict.PROVED:
        having = run_with()
        verdict, why = _with(having, fails)
    if verdict is not ProofVerdict.PROVED:
        return PatchProof(name, test, verdict, why, (), (), (), left_out)
    passed = tuple(one.test for one in having if one.outcome == "passed")
    skipped = tuple(one.told for one in having if one.outcome == "skipped")
    return PatchProof(name, test, verdict, "", tuple(one for one in passed if one in fails), passed, skipped, left_out)


def _without(found: Sequence[PytestOutcome]) -> tuple[ProofVerdict, str]:
    wrong = [one for one in found if one.outcome == "failed" and not one.assertion]
    if wrong:
        return ProofVerdict.ERRORS_WITHOUT, _told(wrong)
    if any(one.assertion for one in found):
        return ProofVerdict.PROVED, ""
    skipped = all(one.outcome == "skipped" for one in found)
    return (ProofVerdict.SKIPPED if skipped else ProofVerdict.PASSES_WITHOUT), _told(found)


def _with(found: Sequence[PytestOutcome], fails: set[str]) -> tuple[ProofVerdict, str]:
    bad = [one for one in found if one.outcome == "failed"]
    if bad:
        return ProofVerdict.FAILS_WITH, _told(bad)
    if any(one.outcome == "passed" and one.test in fails for one in found):
        return ProofVerdict.PROVED, ""
    why = _told([one for one in found if one.outcome == "skipped"])
    return ProofVerdict.SKIPPED, why or "no test that fails without the patch ran with it"


def _told(some: Sequence[PytestOutcome]) -> str:
    more = f"; {len(some) - _SHOWN} more" if len(some) > _SHOWN else ""
    return "; ".join(one.told for one in some[:_SHOWN]) + more
