"""Tasks on the checkout itself: its tests."""

from __future__ import annotations

import sys

from invoke.context import Context
from invoke.tasks import task

from sparkforge.core import console, proc
from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.paths import ROOT

# Every test is in one of these groups, by its marks; `.ci/run` runs them one by one.
GROUPS = {
    "fast": "not (online or engine or nvcc or gpu or serves or slow)",
    "engine": "engine",
    "serves": "serves and not engine",
    "compile": "nvcc and not (engine or serves)",
    "rest": "(online or gpu or slow) and not (engine or serves or nvcc)",
}


@task(
    help={
        "fast": "lint, types, and the tests that need no network, engine, compiler or GPU and no more than seconds",
        "group": f"tests of one group alone: {', '.join(GROUPS)}",
    }
)
def test(_: Context, fast: bool = False, group: str = "") -> None:  # noqa: PT028  a task, not a test
    """Lint, types and tests; all that this machine can run, the rest is skipped and named."""
    if group and group not in GROUPS:
        raise BadInput(f"there is no group {group!r}", why=f"groups: {', '.join(GROUPS)}")
    marks = GROUPS.get("fast" if fast else group)
    python = sys.executable
    runs = [[python, "-m", "pytest", *(["-m", marks] if marks else [])]]
    if not group:
        runs = [
            [python, "-m", *words] for words in (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"])
        ] + runs
    failed = []
    for argv in runs:
        console.say(f"$ {proc.quoted(argv[1:])}")
        if proc.run(argv, cwd=ROOT, stream=True, check=False).code:
            failed.append(argv[2])
    if failed:
        raise CheckFailed(f"{', '.join(failed)} found something; see above")
