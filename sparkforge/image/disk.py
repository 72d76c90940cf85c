"""Disk and downloads that a build needs, computed from sizes and checked before work starts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sparkforge.core.console import mib
from sparkforge.core.errors import EnvironmentLacks
from sparkforge.core.store import Store
from sparkforge.engine.engine import Engine
from sparkforge.inputs import fetch

# Measured on the runtime of the default stack (167 wheels, 3.04 GB packed, 5.77 GB of files, 0.2 GB of bytecode) and on
# its upstream wheels (0.11 GB packed, 0.41 GB of files), which are sources and compiled code that packs well.
RUNTIME_UNPACKED = 2.1
UPSTREAM_UNPACKED = 4.2
_BASE = 600_000_000  # bytes of a base before it is made: measured on Debian 12 with a compiler
_SPARE = 2_000_000_000


@dataclass(frozen=True)
class DiskNeed:
    """What a build takes.

    Attributes:
        download: bytes to fetch.
        store: bytes that the store grows by.
        engine: bytes that the engine's storage grows by.
    """

    download: int
    store: int
    engine: int

    @property
    def text(self) -> str:
        """For people."""
        return f"{mib(self.download)} to download, {mib(self.store)} in the store, {mib(self.engine)} in the engine"


@dataclass(frozen=True)
class PackedSizes:
    """Bytes of the wheels of a build, packed.

    Attributes:
        missing: those that are not in the store yet.
        runtime: of the runtime.
        upstream: of the upstreams.
        environment: of an environment that has to be made for the modules; 0 where there is one.
    """

    missing: int
    runtime: int
    upstream: int
    environment: int = 0

    @classmethod
    def of(
        cls,
        store: Store,
        runtime: Iterable[fetch.Wanted],
        upstream: Iterable[fetch.Wanted],
        environment: Iterable[fetch.Wanted],
        others: Iterable[fetch.Wanted],
    ) -> PackedSizes:
        """Sizes from the store, and from the index for what the store does not have.

        Raises:
            EnvironmentLacks: the index does not answer, or lacks a file.
        """
        groups = [list(group) for group in (runtime, upstream, environment, others)]
        lacking = {one.file: one for group in groups for one in group if fetch.held(store, one) is None}
        asked = fetch.sizes(fetch.locate(lacking.values())) if lacking else {}

        def packed(group: list[fetch.Wanted]) -> int:
            return sum(asked.get(one.file) or size(fetch.path_of(store, one.file)) for one in group)

        return cls(sum(asked.values()), packed(groups[0]), packed(groups[1]), packed(groups[2]))


def need(sizes: PackedSizes, *, engine: str, cross: bool, base_here: bool) -> DiskNeed:
    """Needs of one image.

    Args:
        sizes: of its wheels.
        engine: docker or buildah.
        cross: the runtime is laid in one stage and copied into another.
        base_here: the base is made already.
    """
    # BuildKit keeps its own copy of the context; buildah reads it where it stands.
    context = sizes.runtime + sizes.upstream if engine == "docker" else 0
    runtime = int(sizes.runtime * RUNTIME_UNPACKED) * (2 if cross else 1)
    upstream = int(sizes.upstream * UPSTREAM_UNPACKED) * 2
    base = 0 if base_here else _BASE
    return DiskNeed(
        download=sizes.missing + base // 3,
        # The base's archive, and its root beside it while it is made; an environment is unpacked.
        store=sizes.missing + base * 2 + int(sizes.environment * RUNTIME_UNPACKED),
        engine=context + runtime + upstream + base,
    )


def check(need: DiskNeed, store: Path, engine: Engine) -> None:
    """Hold the needs against the free space, before anything is written.

    Raises:
        EnvironmentLacks: too little; names the place, the need and what is free.
    """
    wanted: dict[int, tuple[int, list[Path]]] = {}
    for place, bytes_ in ((store, need.store), (engine.root(), need.engine)):
        device = existing(place).stat().st_dev
        total, places = wanted.get(device, (0, []))
        wanted[device] = (total + bytes_, [*places, place])
    for total, places in wanted.values():
        free = shutil.disk_usage(existing(places[0])).free
        if total and free < total + _SPARE:
            shown = " and ".join(str(place) for place in places)
            raise EnvironmentLacks(
                "there is too little disk for this build",
                why=f"{shown}: {mib(free)} free, {mib(total)} needed and {mib(_SPARE)} kept spare",
                do="free some, or set SPARKFORGE_STORE to a place on another disk",
            )


def existing(path: Path) -> Path:
    """The path, or the nearest directory above it that is there and can be looked at."""
    return next((here for here in (path, *path.parents) if os.access(here, os.F_OK)), Path("/"))


def size(file: Path) -> int:
    """Bytes of a file; 0 where it is not there."""
    return file.stat().st_size if file.is_file() else 0
