"""`pip check`, for any platform: what installed distributions require and do not get, held against what we know of.

Read from the metadata in a site-packages directory, as `pip check` does, rather than by a program inside: so an image
for another platform is checked without running any of it. Every expected conflict is in `pip-check.yaml` with its
reason; one that no longer occurs is an error too.
"""

from __future__ import annotations

from importlib.metadata import distributions
from pathlib import Path

import msgspec
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sparkforge.core.errors import CheckFailed
from sparkforge.core.paths import ROOT, shown
from sparkforge.core.platforms import Platform
from sparkforge.inputs.recipes import Stack, Target, load


class Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line that a check may give.

    Attributes:
        says: the line.
        why: the reason for which it is right all the same.
    """

    says: str
    why: str


class KnownConflicts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lines that the check gives, by target."""

    serve: tuple[Known, ...]
    cpu: tuple[Known, ...]

    def of(self, target: Target) -> tuple[Known, ...]:
        """Exceptions of one target."""
        return self.serve if target == "serve" else self.cpu


def conflicts(site: Path, platform: Platform, python: str) -> list[str]:
    """What is required in `site` and missing or another version; a line each, sorted.

    Args:
        site: a site-packages directory, of any platform.
        platform: for which the requirements' markers are read.
        python: MAJOR.MINOR, likewise.
    """
    found = [one for one in distributions(path=[str(site)]) if one.metadata["Name"]]
    installed = {canonicalize_name(one.metadata["Name"]): one.version for one in found}
    environment: dict[str, str] = {name: str(value) for name, value in default_environment().items()} | {
        "platform_machine": platform.machine,
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }
    lines = set()
    for one in found:
        name = canonicalize_name(one.metadata["Name"])
        for text in one.requires or []:
            wanted = Requirement(text)
            if wanted.marker and not wanted.marker.evaluate(environment):
                continue
            has = installed.get(canonicalize_name(wanted.name))
            asks = f"{name} requires {canonicalize_name(wanted.name)}{wanted.specifier}"
            if has is None:
                lines.add(f"{asks}, which is not installed")
            elif not wanted.specifier.contains(has, prereleases=True):
                lines.add(f"{asks}, but {has} is installed")
    return sorted(lines)


def check(stack: Stack, target: Target, site: Path, platform: Platform, python: str) -> list[str]:
    """Hold an environment against the exceptions of its target; returns the lines that were expected.

    Raises:
        CheckFailed: an unexpected conflict, or an expected one that no longer occurs.
        BadInput: the file of exceptions is not valid.
    """
    file = ROOT / stack.locks / "pip-check.yaml"
    named = {one.says for one in load(file, KnownConflicts).of(target)}
    said = set(conflicts(site, platform, python))
    wrong = [f"not expected: {line}" for line in sorted(said - named)]
    wrong += [f"named in {shown(file)}, but does not occur: {line}" for line in sorted(named - said)]
    if wrong:
        raise CheckFailed(
            f"the environment of target {target} is not consistent",
            why="\n       ".join(wrong),
            do=f"mend the lock's inputs, or {shown(file)} with a reason",
        )
    return sorted(said)
