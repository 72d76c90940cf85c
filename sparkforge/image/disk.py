"""Disk and download needs of a build, computed from sizes and checked before work starts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sparkforge.core.console import mib
from sparkforge.core.errors import EnvironmentLacks
from sparkforge.engine.engine import Engine

# Measured on the runtime of the default stack (167 wheels, 3.04 GB packed, 5.77 GB of files, 0.2 GB of bytecode) and on
# its upstream wheels (0.11 GB packed, 0.41 GB of files), which are sources and compiled code that packs well.
RUNTIME_UNPACKED = 2.1
UPSTREAM_UNPACKED = 4.2
_SPARE = 2_000_000_000


@dataclass(frozen=True)
class Need:
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


def need(
    *,
    fetch: int,
    runtime: int,
    upstream: int,
    base: int,
    engine: str,
    cross: bool,
    base_here: bool,
    environment: int = 0,
) -> Need:
    """Needs of one image.

    Args:
        fetch: bytes of the wheels and sources that are not in the store yet.
        runtime: bytes of the runtime's wheels, packed.
        upstream: bytes of the upstream wheels, packed.
        base: bytes of the base's root file system.
        engine: docker or buildah.
        cross: the runtime is laid in one stage and copied into another.
        base_here: the base is made already.
        environment: bytes of the wheels of an environment that has to be made, packed.
    """
    # BuildKit keeps its own copy of the context; buildah reads it where it stands.
    context = runtime + upstream if engine == "docker" else 0
    runtime_laid = int(runtime * RUNTIME_UNPACKED) * (2 if cross else 1)
    upstream_laid = int(upstream * UPSTREAM_UNPACKED) * 2
    made = 0 if base_here else base
    return Need(
        download=fetch + (0 if base_here else base // 3),
        # The base's archive, and its root beside it while it is made; an environment is unpacked.
        store=fetch + made * 2 + int(environment * RUNTIME_UNPACKED),
        engine=context + runtime_laid + upstream_laid + made,
    )


def check(need: Need, store: Path, engine: Engine) -> None:
    """Hold the needs against the free space, before anything is written.

    Raises:
        EnvironmentLacks: too little; names the place, the need and what is free.
    """
    wanted: dict[int, tuple[int, list[Path]]] = {}
    for place, size in ((store, need.store), (engine.root(), need.engine)):
        device = existing(place).stat().st_dev
        total, places = wanted.get(device, (0, []))
        wanted[device] = (total + size, [*places, place])
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
    for here in (path, *path.parents):
        if os.access(here, os.F_OK):
            return here
    return Path("/")


def sizes(wheels: Iterable[Path]) -> int:
    """Bytes of files."""
    return sum(wheel.stat().st_size for wheel in wheels)
