"""What test outcomes without a patch and with it say about the patch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeAlias

import msgspec


class Verdict(Enum):
    """What is known of one test of one patch."""

    PROVED = "proved"
    PASSES_WITHOUT = "passes without the patch"
    ERRORS_WITHOUT = "fails without the patch by something else than an assertion"
    FAILS_WITH = "fails with the patch"
    SKIPPED = "skipped"


class Outcome(msgspec.Struct, frozen=True):
    """What became of one test function; fields as `outcomes` writes them."""

    test: str
    when: str
    outcome: str
    exception: str
    assertion: bool
    why: str

    @property
    def told(self) -> str:
        """For a message."""
        name = self.test.rpartition("::")[2]
        return f"{name} ({self.when}): {self.exception or self.outcome}: {self.why[:200]}"


class Proof(msgspec.Struct, frozen=True):
    """Whether one test proves one patch.

    Attributes:
        id: of the patch.
        test: file, relative to the checkout.
        verdict: see Verdict.
        why: what stands against it; empty when it is proved.
        proving: tests that fail by assertion without the patch and pass with it.
        passed: tests that pass with the series.
        skipped: tests that were skipped with the series, each with its reason.
        left_out: other patches that had to go with it.
        cached: from the store.
    """

    id: str
    test: str
    verdict: Verdict
    why: str
    proving: tuple[str, ...]
    passed: tuple[str, ...]
    skipped: tuple[str, ...]
    left_out: tuple[str, ...]
    cached: bool = False

    @property
    def proved(self) -> bool:
        """Whether it is."""
        return self.verdict is Verdict.PROVED


Outcomes: TypeAlias = "tuple[Outcome, ...] | str"  # a sentence where pytest itself did not come to an end

_SHOWN = 3


def judged(
    name: str, test: str, left_out: tuple[str, ...], without: Outcomes, run_with: Callable[[], Outcomes]
) -> Proof:
    """Proof from the outcomes of one test file.

    Args:
        name: id of the patch.
        test: the file.
        left_out: patches that went with it.
        without: outcomes without the patch.
        run_with: gives those with the whole series; asked only when the first are as they must be.
    """
    against, why = _without(without)
    if against is not None or isinstance(without, str):
        return Proof(name, test, against or Verdict.ERRORS_WITHOUT, why, (), (), (), left_out)
    fails = {one.test for one in without if one.assertion}
    having = run_with()
    against, why = _with(having, fails)
    if against is not None or isinstance(having, str):
        return Proof(name, test, against or Verdict.FAILS_WITH, why, (), (), (), left_out)
    passed = tuple(one.test for one in having if one.outcome == "passed")
    skipped = tuple(one.told for one in having if one.outcome == "skipped")
    proving = tuple(one for one in passed if one in fails)
    return Proof(name, test, Verdict.PROVED, "", proving, passed, skipped, left_out)


def _without(found: Outcomes) -> tuple[Verdict | None, str]:
    if isinstance(found, str):
        return Verdict.ERRORS_WITHOUT, found
    wrong = [one for one in found if one.outcome == "failed" and not one.assertion]
    if wrong:
        return Verdict.ERRORS_WITHOUT, _told(wrong)
    if any(one.assertion for one in found):
        return None, ""
    skipped = all(one.outcome == "skipped" for one in found)
    return (Verdict.SKIPPED if skipped else Verdict.PASSES_WITHOUT), _told(found)


def _with(found: Outcomes, fails: set[str]) -> tuple[Verdict | None, str]:
    if isinstance(found, str):
        return Verdict.FAILS_WITH, found
    bad = [one for one in found if one.outcome == "failed"]
    if bad:
        return Verdict.FAILS_WITH, _told(bad)
    if any(one.outcome == "passed" and one.test in fails for one in found):
        return None, ""
    why = _told([one for one in found if one.outcome == "skipped"])
    return Verdict.SKIPPED, why or "no test that fails without the patch ran with it"


def _told(some: Sequence[Outcome]) -> str:
    more = f"; {len(some) - _SHOWN} more" if len(some) > _SHOWN else ""
    return "; ".join(one.told for one in some[:_SHOWN]) + more
