"""`pip check` of an image before it is built, from the metadata in its wheels. Nothing is run."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

from sparkforge.core.hashing import key_of
from sparkforge.core.integrity import seal, sound
from sparkforge.core.paths import ROOT
from sparkforge.core.pipeline import Pipeline
from sparkforge.core.store import Store
from sparkforge.image.part_steps import Wheels
from sparkforge.image.request import Request
from sparkforge.inputs import fetch, pipcheck
from sparkforge.inputs.recipes import Base, Stack

_KIND = "requirements"


def step(line: Pipeline, store: Store, stack: Stack, request: Request, wheels: Wheels, *, base: Base) -> None:
    """Check that the wheels meet each other's requirements; expected conflicts are in `pip-check.yaml`.

    Raises:
        CheckFailed: an unexpected conflict, or an expected one that no longer occurs.
    """
    known = ROOT / stack.locks / "pip-check.yaml"
    key = key_of("requirements 1", wheels.key, known, request.target)

    def made() -> str:
        with tempfile.TemporaryDirectory(prefix="sparkforge-requirements-") as folder:
            site = Path(folder)
            for item in (*wheels.runtime.wanted, *wheels.upstream):
                _metadata(fetch.path_of(store, item.file), site)
            pipcheck.check(stack, request.target, site, request.platform, base.python)
        with store.writing(_KIND, key) as kept:
            (kept / "wheels").write_text(f"{wheels.key}\n")
            seal(kept)
        return "met"

    line.step(
        "requirements",
        inputs={"wheels": wheels.key, "exceptions": key_of(known)},
        look=lambda: "met" if sound(store.path(_KIND, key)) else None,
        make=made,
        shows=lambda said: f"{said}, but for the exceptions in {known.name}",
    )


def _metadata(wheel: Path, site: Path) -> None:
    """Write a wheel's METADATA and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".dist-info/METADATA") and name.count("/") == 1:
                target = site / name
                target.parent.mkdir()
                target.write_bytes(archive.read(name))
                return
