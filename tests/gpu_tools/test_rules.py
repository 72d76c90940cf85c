"""When a check of a vLLM proof is right, from its numbers alone; and the limits, held against planted faults."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "gpu" / "vllm"))

import rules  # noqa: E402  the path comes first
from rules import LIMITS  # noqa: E402


def check(numbers, *demands, state="judged"):
    return {"section": "s", "name": "n", "state": state, "said": "why", "numbers": numbers, "demands": list(demands)}


@pytest.mark.parametrize(
    ("numbers", "demand", "verdict"),
    [
        ({"rms": LIMITS["logit rms"]}, ("rms", "<=", "logit rms"), "right"),
        ({"rms": LIMITS["logit rms"] + 0.001}, ("rms", "<=", "logit rms"), "wrong"),
        ({"rms": float("nan")}, ("rms", "<=", "logit rms"), "wrong"),
        ({"rms": None}, ("rms", "<=", "logit rms"), "wrong"),
        ({}, ("rms", "<=", "logit rms"), "wrong"),
        ({"equal": 16}, ("equal", "==", 16), "right"),
        ({"equal": 15}, ("equal", "==", 16), "wrong"),
        ({"ran": {"dense": 3}}, ("ran", "==", {"dense": 3}), "right"),
        ({"failed": "x"}, ("failed", "==", ""), "wrong"),
        ({"replays": 0}, ("replays", ">", 0), "wrong"),
    ],
)
def test_a_check_is_right_where_its_numbers_meet_its_demands(numbers, demand, verdict):
    assert rules.verdict(check(numbers, demand)) == verdict
    assert bool(rules.unmet(check(numbers, demand))) == (verdict == "wrong")


def test_a_check_that_demands_nothing_is_wrong():
    assert rules.verdict(check({"a": 1})) == "wrong"


def result(*checks, interrupted=None):
    return {"checks": list(checks), "interrupted": interrupted}


RIGHT = check({"a": 1}, ("a", "==", 1))


def test_a_run_is_right_where_every_check_is():
    assert rules.failures(result(RIGHT, check({}, state="told"))) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (result(RIGHT, check({"a": 2}, ("a", "==", 1))), "s, n: a is 2, not == 1"),
        (result(RIGHT, check({}, state="not run")), "s, n: not run: why"),
        (result(RIGHT, interrupted="KeyboardInterrupt"), "interrupted: KeyboardInterrupt"),
        (result(), "nothing was judged"),
        (result(check({}, state="told")), "nothing was judged"),
    ],
)
def test_what_is_wrong_with_a_run_is_named(wrong, said):
    assert said in rules.failures(wrong)


def test_a_limit_that_is_lowered_judges_old_numbers_anew(monkeypatch):
    old = check({"rms": 0.05}, ("rms", "<=", "logit rms"))
    assert rules.verdict(old) == "right"
    monkeypatch.setitem(LIMITS, "logit rms", 0.04)
    assert rules.verdict(old) == "wrong"
