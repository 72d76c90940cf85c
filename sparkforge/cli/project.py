"""Tasks on the checkout itself: its tests."""

from __future__ import annotations

import sys

from invoke.context import Context
from invoke.tasks import task

from sparkforge.core import console, proc
from sparkforge.core.errors import CheckFailed
from sparkforge.core.paths import ROOT

_MARKED = ("online", "engine", "nvcc", "gpu", "serves", "slow")


@task(help={"fast": "leave out everything that needs the network, an engine, nvcc, a GPU or more than seconds"})
def test(_: Context, fast: bool = False) -> None:  # noqa: PT028  a task, not a test
    """Lint, types and tests; all that this machine can run, the rest is skipped and named."""
    python = sys.executable
    runs = [
        [python, "-m", "ruff", "check", "."],
        [python, "-m", "ruff", "format", "--check", "."],
        [python, "-m", "mypy"],
        [python, "-m", "pytest", *(["-m", " and ".join(f"not {marker}" for marker in _MARKED)] if fast else [])],
    ]
    failed = []
    for argv in runs:
        console.say(f"$ {proc.quoted(argv[1:])}")
        if proc.run(argv, cwd=ROOT, stream=True, check=False).code:
            failed.append(argv[2])
    if failed:
        raise CheckFailed(f"{', '.join(failed)} found something; see above")
