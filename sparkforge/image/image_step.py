"""The image step: what the image is made from, and the engine's build of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from sparkforge import __version__
from sparkforge.core.console import mib, say
from sparkforge.core.hashing import key_of, sha256_file
from sparkforge.core.paths import IMAGES, ROOT
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store
from sparkforge.engine.engine import Engine, Layer
from sparkforge.image import base as bases
from sparkforge.image import context, dockerfile, labels, revision
from sparkforge.image.layers import difference
from sparkforge.image.module_step import UPSTREAM, ImageModules
from sparkforge.image.part_steps import Upstreams, Wheels
from sparkforge.image.request import Request
from sparkforge.inputs import fetch
from sparkforge.inputs.recipes import Stack
from sparkforge.kernels.library import KernelLibrary

BUILT = f"{labels.OURS}build"


@dataclass(frozen=True)
class Parts:
    """Everything that goes into an image; in a dry run only what is there already.

    Attributes:
        upstreams: trees and overlays.
        library: our kernels.
        wheels: what is installed.
        base: what it stands on.
        ahead: FlashInfer's modules.
        profiles: content of its profiles.json.
    """

    upstreams: Upstreams
    library: KernelLibrary | None
    wheels: Wheels
    base: bases.Base | None
    ahead: ImageModules
    profiles: str = "{}\n"


def facts(stack: Stack, request: Request, parts: Parts) -> labels.ImageFacts | None:
    """What the image says of itself; None where a part is only planned."""
    if parts.library is None or parts.base is None or parts.ahead.key is None:
        return None
    upstreams = {}
    overlays = {}
    for (name, tree), wheel in zip(parts.upstreams.trees.items(), parts.wheels.upstream, strict=True):
        overlay = parts.upstreams.overlays[name]
        if tree is None or overlay is None:
            return None
        overlays[name] = overlay.digest
        upstreams[name] = labels.Upstream(
            release=stack.upstreams[name].release,
            commit=stack.upstreams[name].commit,
            tree=tree.id,
            series=tree.series.sha256,
            wheel=wheel.file.sha256,
            package=wheel.package,
        )
    checkout = revision.of(ROOT)
    archs = [arch.text for arch in request.archs]
    made_from = key_of(
        "image 1",
        [request.tag, request.platform.oci, archs],
        msgspec.to_builtins(upstreams),
        overlays,
        parts.library.sha256,
        parts.wheels.key,
        [parts.base.key, parts.base.digest],
        [parts.ahead.key, parts.ahead.left_out, parts.ahead.parts_left_out],
        _checkout(parts),
    )
    return labels.ImageFacts(
        stack=stack.name,
        target=request.target,
        platform=request.platform.oci,
        archs=archs,
        upstreams=upstreams,
        kernels=parts.library.sha256,
        aot=parts.ahead.key,
        aot_modules=parts.ahead.held,
        aot_left_out=parts.ahead.left_out,
        parts_left_out=parts.ahead.parts_left_out,
        lock=sha256_file(parts.wheels.lock),
        base=parts.base.flavor,
        base_name=parts.base.name,
        base_digest=parts.base.digest,
        build=made_from[:16],
        version=__version__,
        revision=checkout.commit,
        created=checkout.date,
        test_only=labels.test_only(request.target, request.platform, request.archs),
    )


def inputs(request: Request, parts: Parts) -> Mapping[str, str | None]:
    """Hash of each thing that the image reads; says later what changed."""
    overlays = parts.upstreams.overlays.items()
    return {
        **{f"overlay {name}": overlay.digest if overlay else None for name, overlay in overlays},
        "kernels": parts.library.sha256 if parts.library else None,
        "aot": parts.ahead.key,
        "wheels": parts.wheels.key,
        "base": parts.base.digest if parts.base else None,
        "archs": ",".join(arch.text for arch in request.archs),
        **{name: key_of(path) for name, path in _checkout(parts).items()},
    }


def _checkout(parts: Parts) -> dict[str, Any]:
    """What of the checkout itself is in every image."""
    return {
        "Dockerfile": ROOT / "Dockerfile",
        "images/lay": IMAGES / "lay",
        "images/run": IMAGES / "run",
        "profiles": parts.profiles,
        "overlay/apply.py": ROOT / "sparkforge" / "overlay" / "apply.py",
    }


def there(engine: Engine, request: Request, wanted: labels.ImageFacts | None) -> str | None:
    """The image's tag if the engine holds it and it is made from just this."""
    if wanted is None or not engine.has(request.tag):
        return None
    return request.tag if engine.labels(request.tag).get(BUILT) == wanted.build else None


def make(engine: Engine, store: Store, stack: Stack, request: Request, *, parts: Parts, said: labels.ImageFacts) -> str:
    """Assemble the context and build the image; its tag.

    Raises:
        CheckFailed: the engine's build failed; the image that was there before stays.
    """
    assert parts.library is not None  # noqa: S101  there are facts, so there is every part
    assert parts.base is not None  # noqa: S101  as above
    wheels, base, host = parts.wheels, parts.base, Platform.host()
    native = request.platform == host
    assembled = context.assemble(
        store,
        request.tag.rpartition(":")[2],
        uv=next(_wheel(store, one) for one in wheels.tools.wanted if one.package == "uv"),
        lock=wheels.lock,
        wheels=[_wheel(store, one) for one in wheels.runtime.wanted],
        upstreams=[_wheel(store, one) for one in wheels.upstream],
        overlays={name: overlay.path for name, overlay in parts.upstreams.overlays.items() if overlay},
        kernels=parts.library.folder,
        aot=_aot(parts),
        manifest=labels.manifest(said),
        profiles=parts.profiles,
    )
    say(f"  context of {mib(assembled.bytes)} in {assembled.path}")
    before = engine.layers(request.tag) if engine.has(request.tag) else []
    dockerfile.build(
        engine,
        assembled,
        base,
        said,
        tag=request.tag,
        archs=request.archs,
        platform=request.platform,
        build_base=None if native else bases.ensure(engine, store, stack, base.flavor, host),
    )
    _told(before, engine.layers(request.tag))
    return request.tag


def _aot(parts: Parts) -> context.ModuleFolder | None:
    tree = parts.upstreams.trees[UPSTREAM]
    if parts.ahead.modules is None or tree is None:
        return None
    return context.ModuleFolder(parts.ahead.modules.folder, parts.ahead.modules.facts.key, tree.id)


def _told(before: list[Layer], after: list[Layer]) -> None:
    changed = difference(before, after)
    size = changed.new_bytes
    say(
        f"  {len(changed.kept)} of {len(after)} layers kept, {len(changed.new)} new"
        + (f", {mib(size)}" if size else "")
    )


def _wheel(store: Store, wanted: fetch.Wanted) -> context.Wheel:
    return context.Wheel(fetch.path_of(store, wanted.file), wanted.file.name, wanted.file.sha256)
