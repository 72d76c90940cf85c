"""The step of an image's FlashInfer modules: compiled ahead of time for SM12x, or left out, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkforge.aot import modules as build
from sparkforge.aot import selection, tools
from sparkforge.core.arch import SM12X
from sparkforge.core.console import say
from sparkforge.core.errors import BadInput, EnvironmentLacks
from sparkforge.core.hashing import key_of
from sparkforge.core.paths import RESULTS
from sparkforge.core.pipeline import Pipeline
from sparkforge.core.store import Store
from sparkforge.environments import venv
from sparkforge.image.labels import NO_MODULES
from sparkforge.image.part_steps import Upstreams
from sparkforge.image.request import Request
from sparkforge.inputs import fetch, toolchain
from sparkforge.inputs.recipes import Base, OciPlatform, Stack
from sparkforge.overlay import of_stack
from sparkforge.overlay.compute import Overlay

UPSTREAM = "flashinfer"
# Of flashinfer.aot_gpt_oss.gen_modules: both kinds of KV cache, attention of a draft model, XQA for vLLM's page of 16.
OPTIONS: dict[str, Any] = {"draft_layers": True, "xqa_page_sizes": [16]}
# Newest symbols of libstdc++ by the C library of a base: GCC 12 of Debian 12, GCC 14 of Ubuntu 24.04.
_GLIBCXX = {"2_36": (3, 4, 30), "2_39": (3, 4, 33)}


@dataclass(frozen=True)
class ImageModules:
    """Modules of an image.

    Attributes:
        modules: what was built; None where none belong into it, or where a dry run would have to build them.
        key: of the set; NO_MODULES where none belong into it; None where a dry run would have to build them.
        why: the reason for none, in words.
    """

    modules: build.BuiltModules | None
    key: str | None
    why: str = ""

    @property
    def held(self) -> dict[str, str]:
        """SHA-256 of each module, by name."""
        return {one.name: one.sha256 for one in self.modules.facts.modules} if self.modules else {}

    @property
    def left_out(self) -> dict[str, str]:
        """Modules that the image does not hold, and why; `*` where it holds none and would need them."""
        if self.modules is None:
            return (
                {"*": f"{self.why}; a server compiles what it needs when it starts"} if self.key == NO_MODULES else {}
            )
        left = self.modules.facts.left_out.items()
        return {name: f"only for parts that are off by default: {', '.join(parts)}" for name, parts in left}

    @property
    def parts_left_out(self) -> dict[str, list[str]]:
        """Parts that the image refuses to turn on, with the modules that they lack."""
        return selection.parts_without(self.modules.facts.left_out) if self.modules else {}


def why_none(request: Request) -> str:
    """Why an image gets no modules, "" where it gets them."""
    if request.target != "serve":
        return f"the target {request.target} compiles nothing for a GPU"
    if any(arch.major != SM12X for arch in request.archs):
        return "FlashInfer finds modules by name alone, and these would be found on a GPU that is no SM12x"
    return "--aot none" if request.aot == "none" else ""


def environment(store: Store, stack: Stack, request: Request) -> tuple[fetch.Wanted, ...]:
    """Wheels of the environment that names the modules, where it has to be made first; none else."""
    if why_none(request):
        return ()
    try:
        return venv.wanting(store, stack)
    except (EnvironmentLacks, BadInput):  # the step says what is wrong, if it comes to that
        return ()


def alone(store: Store, stack: Stack, request: Request, parts: Sequence[selection.PartModules]) -> build.WantedModules:
    """What to build where the modules are wanted by themselves.

    Raises:
        BadInput: none belong to what is asked for.
        CheckFailed: a patch does not apply, or a source is not what is pinned.
    """
    if why := why_none(request):
        raise BadInput("there are no modules for this", why=why, do="--aot needed --arch 12.1f")
    return _asked(store, stack, request, of_stack.one(store, stack, UPSTREAM), parts)


def built(store: Store, stack: Stack, request: Request, parts: Sequence[selection.PartModules]) -> build.BuiltModules:
    """The modules that the store has for the series as it is.

    Raises:
        BadInput: there are none.
        CheckFailed: a file of them was changed.
    """
    asked = alone(store, stack, request, parts)
    if (found := build.known(store, asked)) is None:
        tree = asked.overlay.manifest.tree[:12]
        raise BadInput(
            "there are no modules to look at",
            why=f"the store has none of tree {tree} for {request.platform.oci}, {[one.text for one in request.archs]}",
            do=f"invoke aot.build --aot {request.aot}",
        )
    return found


def made(store: Store, stack: Stack, request: Request, asked: build.WantedModules) -> build.BuiltModules:
    """The modules, from the store or compiled.

    Raises:
        CheckFailed: a source does not compile or link.
        EnvironmentLacks: no compiler, or no environment that imports FlashInfer.
    """
    return build.build(store, asked, lambda: environment_python(store, stack), at_once=request.jobs or None)


def listed(store: Store, stack: Stack, asked: build.WantedModules) -> list[build.ListedModule]:
    """The modules, their sources, and which of them are compiled.

    Raises:
        CheckFailed: FlashInfer cannot be imported.
        EnvironmentLacks: no compiler, or no environment that imports FlashInfer.
    """
    return build.listed(store, asked, environment_python(store, stack))


def _asked(
    store: Store, stack: Stack, request: Request, overlay: Overlay, parts: Sequence[selection.PartModules]
) -> build.WantedModules:
    (path,) = fetch.fetch_all(store, [_wheel(stack, request)])
    chosen = tuple(parts) if request.aot == "needed" else ()
    return build.WantedModules(overlay, path, request.archs, request.platform, OPTIONS, chosen)


def _wheel(stack: Stack, request: Request) -> fetch.Wanted:
    pinned = stack.upstreams[UPSTREAM]
    oci: OciPlatform = "linux/amd64" if request.platform.debian == "amd64" else "linux/arm64"
    return fetch.Wanted(pinned.wheels[oci], pinned.package, stack.where(UPSTREAM, f"wheels.{oci}"))


def wanted(
    store: Store, stack: Stack, request: Request, upstreams: Upstreams, parts: Sequence[selection.PartModules]
) -> build.WantedModules | None:
    """What to build; None in a dry run in which the sources would have to be made first, or the wheel fetched."""
    overlay = upstreams.overlays[UPSTREAM]
    if overlay is None:
        return None
    if request.dry and fetch.held(store, _wheel(stack, request)) is None:
        return None
    return _asked(store, stack, request, overlay, parts)


def step(
    line: Pipeline,
    store: Store,
    stack: Stack,
    request: Request,
    *,
    upstreams: Upstreams,
    base: Base,
    parts: Sequence[selection.PartModules] = (),
) -> ImageModules:
    """FlashInfer's modules of an image.

    Raises:
        CheckFailed: a source does not compile or link.
        EnvironmentLacks: no compiler, no environment that imports FlashInfer, or one newer than the base.
    """
    if why := why_none(request):
        say(f"[ none ] aot: {why}")
        return ImageModules(None, NO_MODULES if request.target == "serve" else "", why)
    asked = wanted(store, stack, request, upstreams, parts)

    def compiled() -> build.BuiltModules:
        assert asked is not None  # noqa: S101  `make` runs only when every input is known
        return made(store, stack, request, asked)

    if asked and build.known(store, asked) is None:
        say(f"  compiling FlashInfer's modules{_cost(request)}; with --aot none a server does it when it starts")
    found = line.step(
        "aot",
        inputs={
            "overlay flashinfer": asked.overlay.digest if asked else None,
            "archs": ",".join(arch.text for arch in request.archs),
            "platform": request.platform.oci,
            "toolchain": tools.identity(toolchain.choose(request.platform)),
            "options": key_of(OPTIONS, request.aot),
            "all": build.key(asked) if asked else None,
        },
        look=lambda: build.known(store, asked) if asked else None,
        make=compiled,
        shows=lambda modules: modules.words,
    )
    if found is not None:
        fits(found, base)
    return ImageModules(found, found.facts.key if found else None)


def _cost(request: Request) -> str:
    """What compiling cost where it was measured, for people; empty where it was not."""
    names = [*([request.aot] if request.aot != "all" else []), *(arch.text for arch in request.archs)]
    path = RESULTS / "flashinfer" / f"aot-{'-'.join(names)}-{request.platform.debian}.json"
    if not path.is_file():
        return ""
    seconds = json.loads(path.read_bytes())["totals"]["cpu_seconds"]
    return f" ({seconds / 60:.0f} CPU minutes when measured)"


def fits(modules: build.BuiltModules, base: Base) -> None:
    """Hold what the modules ask of the C and C++ libraries against what a base has.

    Raises:
        EnvironmentLacks: this machine's compiler is newer than the base's libraries.
    """
    have = {"GLIBC": tuple(int(part) for part in base.glibc.split("_")), "GLIBCXX": _GLIBCXX[base.glibc]}
    for module in modules.facts.modules:
        for family, newest in have.items():
            asks = module.versions.get(family, "0")
            if tuple(int(part) for part in asks.split(".")) > newest:
                raise EnvironmentLacks(
                    f"{module.name} would not load in this image",
                    why=f"it asks for {family}_{asks}; the base has {family}_{'.'.join(map(str, newest))}",
                    do="--base ngc, a machine with an older compiler, or --aot none",
                )


def environment_python(store: Store, stack: Stack) -> Path:
    """The Python of the environment that names the modules, made where it is not there.

    Raises:
        EnvironmentLacks: it cannot be made.
    """
    try:
        return venv.ensure(store, stack).python
    except (EnvironmentLacks, BadInput) as lacking:
        raise EnvironmentLacks(
            "no environment to ask FlashInfer for its modules", why=str(lacking), do="--aot none builds without them"
        ) from lacking
