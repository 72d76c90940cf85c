"""Verbs of the design that this version does not have; each says so and ends with status 3."""

from __future__ import annotations

from invoke.context import Context
from invoke.tasks import task

from sparkforge.core.errors import EnvironmentLacks


def _later(verb: str, until_then: str) -> EnvironmentLacks:
    return EnvironmentLacks(f"`{verb}` is not in this version", why="planned; see the README", do=until_then)


@task
def rebase(_: Context) -> None:
    """Planned: move the series to an upstream release and report what happened to every patch."""
    raise _later("rebase", "invoke patches.check, then invoke patches.edit UPSTREAM on a recipe with the new pin")


@task
def check(_: Context) -> None:
    """Planned: one verdict on an image."""
    raise _later("check", "invoke kernels.audit and invoke smoke")
