"""Trailers: a patch's metadata, in the last paragraph of its message, in a fixed order.

Upstream-Status: Pending | Submitted [url] | Backport [version] | Inappropriate [reason]
Drop-When: a fact that makes the patch needless (see `drop`)
Depends-on: V-01   (any number)
Test: tests/patches/vllm/test_v02_backend.py   (one or more)
Feature: V-02   (the patch's id)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from sparkforge.patches import drop

ORDER = ("Upstream-Status", "Drop-When", "Depends-on", "Test", "Feature")
ALSO = ("Signed-off-by", "Co-authored-by", "Reviewed-by", "Link")
SINGLE = ("Upstream-Status", "Drop-When", "Feature")

_LINE = re.compile(r"^([A-Za-z][A-Za-z-]*): *(.*)$")
_STATUS = re.compile(r"^(Pending( \[.+\])?|Submitted \[https?://\S+\]|Backport \[\S.*\]|Inappropriate \[\S.*\])$")
FEATURE = re.compile(r"^[A-Z]-\d{2,3}$")


@dataclass(frozen=True)
class Trailers:
    """A patch's metadata; `tests` are files relative to the checkout, `lines` are all trailers in order."""

    upstream_status: str
    drop_when: str
    depends_on: tuple[str, ...]
    tests: tuple[str, ...]
    feature: str
    lines: tuple[tuple[str, str], ...]


def parse(text: str) -> tuple[str, Trailers]:
    """Body without trailers, and the trailers; a line that begins with a blank continues the one above."""
    body, _, last = text.strip().rpartition("\n\n")
    lines: list[tuple[str, str]] = []
    for line in last.splitlines():
        if line[:1] in {" ", "\t"} and lines:
            lines[-1] = (lines[-1][0], f"{lines[-1][1]} {line.strip()}")
        elif found := _LINE.match(line):
            lines.append((found[1], found[2].strip()))
        else:  # an ordinary paragraph
            body, lines = text.strip(), []
            break

    def values(key: str) -> tuple[str, ...]:
        return tuple(value for name, value in lines if name == key)

    def value(key: str) -> str:
        return next(iter(values(key)), "")

    return body.strip(), Trailers(
        upstream_status=value("Upstream-Status"),
        drop_when=value("Drop-When"),
        depends_on=values("Depends-on"),
        tests=values("Test"),
        feature=value("Feature"),
        lines=tuple(lines),
    )


def faults(trailers: Trailers) -> list[str]:
    """What is wrong with the trailers themselves, one sentence each."""
    found = []
    names = [name for name, _ in trailers.lines]
    for name in dict.fromkeys(names):
        if name not in ORDER + ALSO:
            found.append(f"{name} is not a trailer of a patch; those are {', '.join(ORDER + ALSO)}")
        if name in SINGLE and names.count(name) > 1:
            found.append(f"{name} is given {names.count(name)} times")
    found += [
        f"the trailer {name} is missing"
        for name in ("Upstream-Status", "Drop-When", "Test", "Feature")
        if name not in names
    ]
    ranks = [ORDER.index(name) for name in names if name in ORDER]
    if ranks != sorted(ranks):
        found.append(f"the trailers are not in the order {', '.join(ORDER)}")
    if "Upstream-Status" in names and not _STATUS.match(trailers.upstream_status):
        found.append(
            f"Upstream-Status: {trailers.upstream_status!r} is not one of Pending, Submitted [url], "
            "Backport [version], Inappropriate [reason]"
        )
    found += [
        f"{name}: {value!r} is not a patch id such as V-01"
        for name, value in trailers.lines
        if name in {"Feature", "Depends-on"} and not FEATURE.match(value)
    ]
    if trailers.drop_when:
        found += drop.faults(trailers.drop_when)
    for test in trailers.tests:
        path = PurePosixPath(test)
        if path.is_absolute() or ".." in path.parts or path.parts[:1] != ("tests",) or path.suffix != ".py":
            found.append(f"Test: {test!r} is not a Python file below tests/")
    return found
