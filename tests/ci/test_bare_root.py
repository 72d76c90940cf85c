"""What is said of a run in a bare root, from its steps."""

from __future__ import annotations

import importlib.util

import pytest

from sparkforge.core.paths import ROOT


def load(name):
    spec = importlib.util.spec_from_file_location(f"measure_{name}", ROOT / "tools" / "measure" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


STEPS = load("bare_root").STEPS
verdicts = load("verdicts")


def result(**statuses):
    return {"steps": [{"step": name, "status": statuses.get(name, 0)} for name in STEPS]}


def test_all_steps_passed():
    assert verdicts.bare_root(result()) == []


@pytest.mark.parametrize("name", list(STEPS))
def test_a_step_that_failed_is_named(name):
    assert verdicts.bare_root(result(**{name: 1})) == [f"{name}: status 1"]


def test_a_run_that_ended_early_is_none():
    early = {"steps": result()["steps"][:-1]}
    for one in (early, {"steps": []}):
        assert "patches.prove" in verdicts.bare_root(one)[0]


def test_groups_that_nobody_ran():
    assert verdicts.groups({"groups": {"a": {}}}) == []
    assert verdicts.groups({"groups": {}}) == ["no group was run"]
