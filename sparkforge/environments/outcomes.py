"""A pytest plugin in one file: writes the outcome of each test, and its exception, as JSON.

It runs in another Python than ours and imports nothing of ours; `patched` copies it to where that Python finds it.
SPARKFORGE_OUTCOMES names the file to write. SPARKFORGE_LAID names the folders of the packages under test: an assertion
in their code is not an assertion of the test.
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
    """Keep the report, and the exception of a failure."""
    report = yield
    if report.when == "call" or report.outcome != "passed":
        _keep(item.nodeid, report, call.excinfo)
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Keep a module that cannot be imported, or that skips itself."""
    if report.outcome != "passed":
        _keep(report.nodeid, report, None)


def pytest_sessionfinish() -> None:
    """Write all outcomes, in one step."""
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
    """Whether the test itself asserts or calls pytest.fail (as pytest.raises does), not the code that it calls."""
    if not isinstance(raised.value, AssertionError | pytest.fail.Exception):
        return False
    raiser = str(raised.traceback[-1].path)
    laid = [folder for folder in os.environ.get("SPARKFORGE_LAID", "").split(os.pathsep) if folder]
    return not any(raiser.startswith(folder + os.sep) for folder in laid)
