"""The whole line: sources, series, overlays, kernels, wheels, modules, base, image."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sparkforge.aot.selection import PartModules
from sparkforge.core.console import mib, say, warn
from sparkforge.core.pipeline import Pipeline, Ran
from sparkforge.core.store import Store, write_file
from sparkforge.engine import choose
from sparkforge.environments.venv import upstream_wheels
from sparkforge.image import base as bases
from sparkforge.image import disk, image_step, labels, part_steps, requirements_step
from sparkforge.image.module_step import UPSTREAM, ModuleJob
from sparkforge.image.request import Request
from sparkforge.inputs import fetch
from sparkforge.inputs.recipes import Stack


@dataclass(frozen=True)
class BuiltImage:
    """What a build gave.

    Attributes:
        image: tag; empty in a dry run.
        engine: that holds it.
        facts: what the image is made from; None in a dry run.
        steps: what was done.
        seconds: wall time.
    """

    image: str
    engine: str
    facts: labels.ImageFacts | None
    steps: tuple[Ran, ...]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """The manifest: what the image is made from, and what was done."""
        said: dict[str, Any] = msgspec.to_builtins(self)
        return said


def build(store: Store, stack: Stack, request: Request, *, profiles: str, parts: Sequence[PartModules]) -> BuiltImage:
    """Build an image, or say what would be done.

    Args:
        store: where every step's result is kept.
        stack: what to build.
        request: for which target, platform and architectures.
        profiles: content of the image's profiles.json.
        parts: modules that each part of these profiles needs.

    Raises:
        SparkforgeError: from any step; nothing half made is left.
    """
    begun = time.monotonic()
    if swept := store.sweep():
        say(f"  removed {len(swept)} unfinished results of an interrupted run")
    engine, why = choose.choose(store, request.engine)
    say(f"{request.tag}  with {why}")
    if labels.test_only(request.target, request.platform, request.archs):
        warn("no machine of this platform has such a GPU: the image is for tests only")
    line = Pipeline(store, f"{stack.name} {request.tag} {engine.name}", dry=request.dry)
    flavor, flavor_why = bases.choose(store, stack, request.base, request.platform)
    pin = stack.bases[flavor]
    bases.pinned(stack, flavor, locked=request.locked)
    upstream = upstream_wheels(stack, request.target, request.platform)
    wheels = part_steps.wheels(store, stack, request, pin, upstream)
    job = ModuleJob(store, stack, request, parts)
    base_key = bases.key_for(flavor, pin, request.platform)
    base_here = store.has(bases.KIND, base_key) and engine.has(f"{bases.TAG}:{base_key}")
    if wheels.missing(store) or not base_here or not engine.has(request.tag):
        sizes = disk.PackedSizes.of(store, wheels.runtime.wanted, upstream, job.environment(), wheels.tools.wanted)
        cross = request.platform != request.platform.host()
        need = disk.need(sizes, engine=engine.name, cross=cross, base_here=base_here)
        say(f"  needs {need.text}")
        if not request.dry:
            disk.check(need, store.root, engine)
    made = part_steps.upstreams(line, store, stack, request)
    library = part_steps.kernel_library(line, store, stack, request, pin)

    def fetched() -> part_steps.Wheels:
        fetch.fetch_all(store, wheels.all, what="fetching the wheelhouse,")
        return wheels

    line.step(
        "wheels",
        inputs={"lock": wheels.key},
        look=lambda: None if wheels.missing(store) else wheels,
        make=fetched,
        shows=lambda found: (
            f"{len(found.all)} files, {mib(sum(disk.size(fetch.path_of(store, one.file)) for one in found.all))}"
        ),
    )
    requirements_step.step(line, store, stack, request, wheels, base=pin)
    modules = job.step(line, made.overlays[UPSTREAM], pin)

    def made_base() -> bases.BaseImage:
        return bases.ensure(engine, store, stack, flavor, request.platform, locked=request.locked)

    base = line.step(
        "base",
        inputs={"recipe": base_key, "locked": str(request.locked)},
        look=lambda: made_base() if base_here else None,
        make=made_base,
        shows=lambda base: f"{base.flavor} ({flavor_why}), {base.digest[:19]}",
    )
    of_image = image_step.ImageParts(made, library, wheels, base, modules, profiles)
    facts = image_step.facts(stack, request, of_image)
    line.step(
        "image",
        inputs=image_step.inputs(request, of_image),
        look=lambda: image_step.there(engine, request, facts),
        make=lambda: image_step.make(engine, store, stack, request, parts=of_image, said=facts) if facts else "",
        shows=lambda _: request.tag,
    )
    seconds = time.monotonic() - begun
    if request.dry or facts is None:
        return BuiltImage("", engine.name, None, tuple(line.ran), seconds)
    kept = store.root / "builds" / f"{request.tag.rpartition(':')[2]}.json"
    write_file(kept, msgspec.json.format(msgspec.json.encode(facts), indent=1))
    say(f"{request.tag} in {engine.name}, {seconds:.1f} s")
    return BuiltImage(request.tag, engine.name, facts, tuple(line.ran), seconds)
