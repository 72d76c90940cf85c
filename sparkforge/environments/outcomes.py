"""A pytest plugin, alone in its file: what became of each test, and by what exception, as JSON.

It runs in another Python than ours and imports nothing of ours. `prove_env` lays it where that Python finds it.
SPARKFORGE_OUTCOMES names the file to write; SPARKFORGE_LAID the folders of the packages under test, since an
assertion of theirs is no assertion of the test's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_records: list[dict[str, Any]] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep what the report says, and of a failure the exception."""
    report = yield
    if report.when == "call" or report.outcome != "passed":
        _keep(item.nodeid, report, call.excinfo)
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A module that cannot be imported, or that skips itself."""
    if report.outcome != "passed":
        _keep(report.nodeid, report, None)


def pytest_sessionfinish() -> None:
    """Write them all, in one step."""
    target = Path(os.environ["SPARKFORGE_OUTCOMES"])
    beside = target.with_suffix(".partial")
    beside.write_text(json.dumps(_records))
    beside.replace(target)


def _keep(node: str, report: Any, raised: pytest.ExceptionInfo[BaseException] | None) -> None:
    lines = str(report.longrepr or "").strip().splitlines() if report.outcome == "failed" else []
    why = report.longrepr[2] if report.outcome == "skipped" and isinstance(report.longrepr, tuple) else ""
    _records.append(
        {
            "test": node,
            "when": report.when or "collect",
            "outcome": report.outcome,
            "exception": type(raised.value).__name__ if raised else "",
            "assertion": raised is not None and report.when == "call" and _is_the_tests(raised),
            "why": why or (str(raised.value).splitlines() or [""])[0] if raised else why or "\n".join(lines[-1:]),
        }
    )


def _is_the_tests(raised: pytest.ExceptionInfo[BaseException]) -> bool:
    """Whether the test says so: by assert, or by pytest.fail (as pytest.raises does), not the code that it calls."""
    if not isinstance(raised.value, AssertionError | pytest.fail.Exception):
        return False
    raiser = str(raised.traceback[-1].path)
    laid = [folder for folder in os.environ.get("SPARKFORGE_LAID", "").split(os.pathsep) if folder]
    return not any(raiser.startswith(folder + os.sep) for folder in laid)
