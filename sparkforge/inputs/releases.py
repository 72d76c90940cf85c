"""Releases of an upstream on the configured package index: which there are, and one of them as a pin."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import msgspec
from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from sparkforge.core.errors import BadInput, EnvironmentLacks
from sparkforge.core.platforms import OciPlatform
from sparkforge.core.store import Store
from sparkforge.inputs.package_index import configured, listed
from sparkforge.inputs.recipes import UNPINNED, Build, File, Upstream
from sparkforge.inputs.sources import Pin, imported

if TYPE_CHECKING:
    from unearth import Link

_MACHINES: dict[str, tuple[OciPlatform, ...]] = {
    "x86_64": ("linux/amd64",),
    "aarch64": ("linux/arm64",),
    "any": ("linux/amd64", "linux/arm64"),
}


@dataclass(frozen=True)
class Release:
    """One release of a distribution.

    Attributes:
        version: its version.
        sdist: the source archive; None where the index has none.
        yanked: why it was withdrawn; None where it was not.
    """

    version: Version
    sdist: Link | None
    yanked: str | None


@cache
def of(package: str) -> tuple[Release, ...]:
    """Every release of a distribution that the index lists, in the order of versions.

    Raises:
        EnvironmentLacks: the index does not answer, or does not have the distribution.
    """
    sdists: dict[Version, Link] = {}
    yanked: dict[Version, list[str | None]] = {}
    for link in listed(configured(), package, ""):
        try:
            if link.filename.endswith(".whl"):
                version = parse_wheel_filename(link.filename)[1]
            else:
                version = parse_sdist_filename(link.filename)[1]
                sdists[version] = link
        except (InvalidSdistFilename, InvalidWheelFilename, InvalidVersion):
            continue  # an egg, an installer: nothing that a pin can name
        yanked.setdefault(version, []).append(link.yank_reason)
    return tuple(
        # A release is withdrawn when every file of it is (PEP 592).
        Release(version, sdists.get(version), None if None in reasons else next(iter(reasons)))
        for version, reasons in sorted(yanked.items())
    )


def newer(upstream: Upstream) -> tuple[str, ...]:
    """Final releases after the pin that have an sdist and were not withdrawn, in order."""
    pin = Version(upstream.release)
    return tuple(
        str(one.version)
        for one in of(upstream.package)
        if one.version > pin and not one.version.is_prerelease and one.sdist is not None and one.yanked is None
    )


def between(upstream: Upstream, release: str) -> tuple[str, ...]:
    """Final releases after the pin up to this one, in order."""
    return tuple(one for one in newer(upstream) if Version(one) <= Version(release))


def at(upstream: Upstream, release: str) -> Upstream:
    """The upstream at another release: its sdist resolved; wheels and commit are still the old pin's.

    Raises:
        BadInput: no such release, it was withdrawn, is not newer than the pin, or has no sdist.
        EnvironmentLacks: the index does not answer, or gives no hash.
    """
    package = upstream.package
    known = of(package)
    try:
        wanted = Version(release)
    except InvalidVersion:
        raise BadInput(f"{release!r} is no version of {package}", why="a release is digits and dots") from None
    found = next((one for one in known if one.version == wanted), None)
    if found is None:
        near = [str(one.version) for one in known if one.version.release[:2] == wanted.release[:2]]
        last = [str(one.version) for one in known if one.sdist is not None and not one.version.is_prerelease][-3:]
        raise BadInput(
            f"{package} has no release {release}", why=f"the package index lists {', '.join(near[-5:] or last)}"
        )
    if wanted <= Version(upstream.release):
        raise BadInput(f"{package} {release} is not newer than the pin", why=f"the stack pins {upstream.release}")
    if found.yanked is not None:
        raise BadInput(f"{package} {release} was withdrawn", why=found.yanked or "the package index says no reason")
    if found.sdist is None:
        raise BadInput(f"{package} {release} has no sdist", why="the package index lists wheels of it only")
    return msgspec.structs.replace(upstream, release=str(found.version), commit=UNPINNED, sdist=_file(found.sdist))


def commit(store: Store, name: str, upstream: Upstream) -> Pin:
    """The source of a release as a commit, apart from the pins: a pin's message names its upstream commit.

    Raises:
        CheckFailed: the archive is not what the index says, or is unsound.
        EnvironmentLacks: the index does not answer.
    """
    return imported(store, f"releases/{name}", upstream, f"release {upstream.release} of {upstream.package}")


def wheels(upstream: Upstream) -> Upstream:
    """The upstream with the wheels of its release, its CPU build too, as the index lists them.

    Raises:
        EnvironmentLacks: a platform has no wheel, or the index gives no hash.
    """
    build = upstream.cpu
    return msgspec.structs.replace(
        upstream,
        wheels=_wheels(upstream.package, upstream.release, tuple(upstream.wheels)),
        cpu=build and Build(build.package, _wheels(build.package, upstream.release, tuple(build.wheels))),
    )


def _wheels(package: str, release: str, platforms: tuple[OciPlatform, ...]) -> dict[OciPlatform, File]:
    found: dict[OciPlatform, File] = {}
    for link in listed(configured(), package, f"-{release}-"):
        try:
            _, version, build, tags = parse_wheel_filename(link.filename)
        except (InvalidWheelFilename, InvalidVersion):
            continue
        if version != Version(release) or build:  # a build number says: made from another commit
            continue
        for tag in tags:
            if tag.interpreter == "py3" or tag.abi == "abi3":
                for platform in _MACHINES.get(re.sub(r"^manylinux_?\d+(_\d+)?_|^linux_", "", tag.platform), ()):
                    found.setdefault(platform, _file(link))
    if missing := [platform for platform in platforms if platform not in found]:
        raise EnvironmentLacks(
            f"{package} {release} has no wheel for {' and '.join(missing)}",
            why="the package index lists none without a build number",
            do="take a release of which every build is there",
        )
    return {platform: found[platform] for platform in platforms}


def _file(link: Link) -> File:
    (digest,) = (link.hash_option or {}).get("sha256", [""])
    if not digest:
        raise EnvironmentLacks(
            f"the package index gives no sha256 of {link.filename}", why="a pin names every file by its hash"
        )
    return File(link.filename, digest)
