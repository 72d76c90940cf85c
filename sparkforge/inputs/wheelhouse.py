"""The wheelhouse: every wheel that a target needs on a platform, verified; the offline bundle of an image.

A lock names versions and the hashes of all their files; which file serves a platform and a Python is decided
here once, by wheel tags, and kept in the store, so that a second build asks no index.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
from packaging import tags
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from sparkforge.core.console import timed
from sparkforge.core.errors import BadInput, EnvironmentLacks
from sparkforge.core.hashing import key_of
from sparkforge.core.paths import shown
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store, write_file
from sparkforge.inputs import fetch
from sparkforge.inputs.package_index import configured, listed
from sparkforge.inputs.recipes import File

_KIND = "wheelhouse"
# Oldest glibc of a manylinux tag (PEP 600), and the older names of three of them (PEP 513, 571, 599).
_OLDEST_GLIBC = 5
_LEGACY = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}


@dataclass(frozen=True)
class Locked:
    """One line of a lock: a distribution at a version, with the hashes that its files may have."""

    package: str
    version: str
    hashes: frozenset[str]
    line: int


@dataclass(frozen=True)
class Wheelhouse:
    """The wheels of one lock on one platform.

    Attributes:
        key: hash of the lock, the platform, the Python and the glibc.
        wanted: each wheel by exact name and hash.
    """

    key: str
    wanted: tuple[fetch.Wanted, ...]


def read_lock(lock: Path) -> list[Locked]:
    """Lines of a requirements file in which everything is pinned and hashed.

    Raises:
        BadInput: not there, a line without a hash or without an exact version.
    """
    if not lock.is_file():
        raise BadInput(f"{shown(lock)} is not there", why="the runtime lock of this target", do="invoke lock")
    found = []
    for number, text in _logical_lines(lock.read_text()):
        words = text.split()
        hashes = frozenset(word.removeprefix("--hash=sha256:") for word in words if word.startswith("--hash=sha256:"))
        name = " ".join(word for word in words if not word.startswith("--hash"))
        at = f"{shown(lock)}, line {number}"
        try:
            wanted = Requirement(name)
        except InvalidRequirement as bad:
            raise BadInput(f"{at} is not a requirement", why=str(bad).splitlines()[0], do="invoke lock") from bad
        pins = [spec.version for spec in wanted.specifier if spec.operator == "=="]
        if not hashes or len(pins) != 1 or any(len(digest) != 64 for digest in hashes):  # noqa: PLR2004  hex digits
            raise BadInput(f"{at} is not pinned", why=f"{name}: one == and at least one sha256", do="invoke lock")
        found.append(Locked(canonicalize_name(wanted.name), pins[0], hashes, number))
    if not found:
        raise BadInput(f"{shown(lock)} names nothing", do="invoke lock")
    return found


def resolve(store: Store, lock: Path, platform: Platform, python: str, glibc: str) -> Wheelhouse:
    """Which wheel of each locked version serves this platform; asks the index once per lock.

    Raises:
        EnvironmentLacks: the index does not answer, or has no wheel that the lock allows.
    """
    key = key_of("wheelhouse 1", lock, platform.oci, python, glibc)
    known = store.path(_KIND, f"{key}.json")
    if not known.is_file():
        locked = read_lock(lock)
        with timed(f"finding {len(locked)} wheels of {shown(lock)} on the package index"):
            order = ranks(platform, python, glibc)
            with ThreadPoolExecutor(16) as pool:
                files = list(pool.map(lambda item: _best(item, order, lock), locked))
        listed = [(item.package, file.name, file.sha256, item.line) for item, file in zip(locked, files, strict=True)]
        write_file(known, msgspec.json.format(msgspec.json.encode(listed), indent=1))
    listed = msgspec.json.decode(known.read_bytes(), type=list[tuple[str, str, str, int]])
    return Wheelhouse(
        key,
        tuple(
            fetch.Wanted(File(name, sha256), package, f"{shown(lock)}, line {line}")
            for package, name, sha256, line in listed
        ),
    )


def ranks(platform: Platform, python: str, glibc: str) -> dict[tags.Tag, int]:
    """Wheel tags that this platform takes, the best first."""
    newest = int(glibc.partition("_")[2])
    platforms = []
    for minor in range(newest, _OLDEST_GLIBC - 1, -1):
        platforms.append(f"manylinux_2_{minor}_{platform.machine}")
        if minor in _LEGACY:
            platforms.append(f"{_LEGACY[minor]}_{platform.machine}")
    platforms.append(f"linux_{platform.machine}")
    major, _, minor_text = python.partition(".")
    version = (int(major), int(minor_text))
    all_tags = [
        *tags.cpython_tags(version, platforms=platforms),
        *tags.compatible_tags(version, f"cp{version[0]}{version[1]}", platforms),
    ]
    return {tag: rank for rank, tag in reversed(list(enumerate(all_tags)))}


def _best(item: Locked, order: dict[tags.Tag, int], lock: Path) -> File:
    """The file of a locked version that serves best."""
    offered: list[tuple[int, tuple[int, str], File]] = []
    for link in listed(configured(), item.package, item.version):
        digest = "".join((link.hash_option or {}).get("sha256", []))
        if digest not in item.hashes:
            continue
        try:
            _, _, build, wheel_tags = parse_wheel_filename(link.filename)
        except InvalidWheelFilename:
            continue
        rank = min((order[tag] for tag in wheel_tags if tag in order), default=None)
        if rank is not None:
            offered.append((-rank, (build[0], build[1]) if build else (0, ""), File(link.filename, digest)))
    if not offered:
        raise EnvironmentLacks(
            f"the package index has no wheel of {item.package} {item.version} for this platform",
            why=f"{shown(lock)}, line {item.line}",
            do="invoke lock",
        )
    return max(offered, key=lambda one: one[:2])[2]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with continuations joined and comments dropped, each with the number of its first physical line."""
    held, begun = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split(" #")[0].strip()
        if line.startswith("#") or (not line and not held):
            continue
        begun = begun or number
        held += line.removesuffix("\\").rstrip() + " "
        if not line.endswith("\\"):
            yield begun, held.strip()
            held, begun = "", 0
