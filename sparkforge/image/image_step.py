"""The image step: what the image is made from, and the engine's build of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from sparkforge import __version__
from sparkforge.core.console import mib, say
from sparkforge.core.hashing import Part, key_of, sha256_file
from sparkforge.core.paths import IMAGES, ROOT
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store
from sparkforge.engine.engine import Engine, Recipe
from sparkforge.image import base as bases
from sparkforge.image import context, labels, revision
from sparkforge.image.dockerfile import arguments
from sparkforge.image.layers import difference
from sparkforge.image.module_step import ImageModules
from sparkforge.image.part_steps import Upstreams, Wheels
from sparkforge.image.request import Request
from sparkforge.inputs import fetch
from sparkforge.inputs.recipes import Stack
from sparkforge.kernels.library import KernelLibrary

BUILT = f"{labels.OURS}build"


@dataclass(frozen=True)
class ImageParts:
    """Everything that goes into an image; in a dry run only what is there already.

    Attributes:
        upstreams: trees and overlays.
        library: our kernels.
        wheels: what is installed.
        base: what it stands on.
        modules: FlashInfer's.
        profiles: content of its profiles.json.
    """

    upstreams: Upstreams
    library: KernelLibrary | None
    wheels: Wheels
    base: bases.BaseImage | None
    modules: ImageModules
    profiles: str = "{}\n"

    @property
    def checkout(self) -> dict[str, Part]:
        """Parts of the checkout that are in every image."""
        return {
            "Dockerfile": ROOT / "Dockerfile",
            "images/lay": IMAGES / "lay",
            "images/run": IMAGES / "run",
            "profiles": self.profiles,
            "overlay/apply.py": ROOT / "sparkforge" / "overlay" / "apply.py",
        }


def inputs(request: Request, parts: ImageParts) -> Mapping[str, str | None]:
    """Hash of each thing that the image reads; says later what changed. None for what is only planned."""
    modules = parts.modules
    return {
        **{f"overlay {name}": one.digest if one else None for name, one in parts.upstreams.overlays.items()},
        "kernels": parts.library.sha256 if parts.library else None,
        "aot": modules.key,
        "aot left out": None if modules.key is None else key_of(modules.left_out, modules.parts_left_out),
        "wheels": parts.wheels.key,
        "base": key_of(parts.base.key, parts.base.digest) if parts.base else None,
        "archs": ",".join(arch.text for arch in request.archs),
        **{name: key_of(path) for name, path in parts.checkout.items()},
    }


def facts(stack: Stack, request: Request, parts: ImageParts) -> labels.ImageFacts | None:
    """What the image says of itself; None where a part is only planned."""
    reads = inputs(request, parts)
    if parts.library is None or parts.base is None or parts.modules.key is None or None in reads.values():
        return None
    upstreams = {}
    for (name, tree), wheel in zip(parts.upstreams.trees.items(), parts.wheels.upstream, strict=True):
        if tree is None:
            return None
        upstreams[name] = labels.UpstreamFacts(
            release=stack.upstreams[name].release,
            commit=stack.upstreams[name].commit,
            tree=tree.id,
            series=tree.series.sha256,
            wheel=wheel.file.sha256,
            package=wheel.package,
        )
    checkout = revision.of(ROOT)
    key = key_of("image 2", request.tag, request.platform.oci, msgspec.to_builtins(upstreams), reads)
    return labels.ImageFacts(
        stack=stack.name,
        target=request.target,
        platform=request.platform.oci,
        archs=[arch.text for arch in request.archs],
        upstreams=upstreams,
        kernels=parts.library.sha256,
        aot=parts.modules.key,
        aot_modules=parts.modules.held,
        aot_left_out=parts.modules.left_out,
        parts_left_out=parts.modules.parts_left_out,
        lock=sha256_file(parts.wheels.lock),
        base=parts.base.flavor,
        base_name=parts.base.name,
        base_digest=parts.base.digest,
        build=key[:16],
        version=__version__,
        revision=checkout.commit,
        created=checkout.date,
        test_only=labels.test_only(request.target, request.platform, request.archs),
    )


def there(engine: Engine, request: Request, wanted: labels.ImageFacts | None) -> str | None:
    """The image's tag if the engine holds it and it is made from just this."""
    if wanted is None or not engine.has(request.tag):
        return None
    return request.tag if engine.labels(request.tag).get(BUILT) == wanted.build else None


def make(
    engine: Engine, store: Store, stack: Stack, request: Request, *, parts: ImageParts, said: labels.ImageFacts
) -> str:
    """Assemble the context and build the image; its tag.

    Raises:
        CheckFailed: the engine's build failed; the image that was there before stays.
    """
    assert parts.library is not None  # noqa: S101  there are facts, so there is every part
    assert parts.base is not None  # noqa: S101  as above
    wheels, base, host = parts.wheels, parts.base, Platform.host()
    built = parts.modules.modules
    made = context.assemble(
        store,
        request.tag.rpartition(":")[2],
        uv=next(_wheel(store, one) for one in wheels.tools.wanted if one.package == "uv"),
        lock=wheels.lock,
        wheels=[_wheel(store, one) for one in wheels.runtime.wanted],
        upstreams=[_wheel(store, one) for one in wheels.upstream],
        overlays={name: overlay.path for name, overlay in parts.upstreams.overlays.items() if overlay},
        kernels=parts.library.folder,
        modules=context.ModuleFolder(built.folder, built.facts.key, built.facts.tree) if built else None,
        manifest=labels.manifest(said),
        profiles=parts.profiles,
    )
    say(f"  context of {mib(made.bytes)} in {made.path}")
    before = engine.layers(request.tag) if engine.has(request.tag) else []
    build_base = None if request.platform == host else bases.ensure(engine, store, stack, base.flavor, host)
    args = arguments(made, base, request.platform, archs=request.archs, build=said.build, build_base=build_base)
    dockerfile = ROOT / "Dockerfile"
    labelled = labels.labels(said)
    engine.build(Recipe(made.path, dockerfile, said.target, request.tag, request.platform, args, labelled))
    after = engine.layers(request.tag)
    changed = difference(before, after)
    size = f", {mib(changed.new_bytes)}" if changed.new_bytes else ""
    say(f"  {len(changed.kept)} of {len(after)} layers kept, {len(changed.new)} new{size}")
    return request.tag


def _wheel(store: Store, wanted: fetch.Wanted) -> context.ContextWheel:
    return context.ContextWheel(fetch.path_of(store, wanted.file), wanted.file.name, wanted.file.sha256)
