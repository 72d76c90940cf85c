"""The step of an image's FlashInfer modules: compiled ahead of time for SM12x, or left out, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkforge.aot import modules as aot
from sparkforge.aot import tools
from sparkforge.aot.selection import PartModules, parts_without
from sparkforge.core.arch import SM12X
from sparkforge.core.console import say
from sparkforge.core.errors import BadInput, EnvironmentLacks
from sparkforge.core.hashing import key_of
from sparkforge.core.paths import RESULTS
from sparkforge.core.pipeline import Pipeline
from sparkforge.core.store import Store
from sparkforge.environments import venv
from sparkforge.image.labels import NO_MODULES
from sparkforge.image.request import Request
from sparkforge.inputs import fetch, toolchain
from sparkforge.inputs.recipes import Base, Stack
from sparkforge.inspect.findings import too_new
from sparkforge.overlay import of_stack
from sparkforge.overlay.compute import Overlay

UPSTREAM = "flashinfer"
# Of flashinfer.aot_gpt_oss.gen_modules: both kinds of KV cache, attention of a draft model, XQA for vLLM's page of 16.
OPTIONS: dict[str, Any] = {"draft_layers": True, "xqa_page_sizes": [16]}


@dataclass(frozen=True)
class ImageModules:
    """Modules of an image.

    Attributes:
        modules: what was built; None where the image gets none, or where a dry run would have to build them.
        key: of the set; NO_MODULES where the image gets none; None where a dry run would have to build them.
        why: the reason for none, in words.
    """

    modules: aot.BuiltModules | None
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
        return parts_without(self.modules.facts.left_out) if self.modules else {}


@dataclass(frozen=True)
class ModuleJob:
    """The modules of one request.

    Attributes:
        store: where they are kept.
        stack: that has FlashInfer.
        request: which of them, for which architectures and platform.
        parts: what each part of a profile needs.
    """

    store: Store
    stack: Stack
    request: Request
    parts: Sequence[PartModules] = ()

    @property
    def none(self) -> str:
        """Why an image gets no modules; empty where it gets some."""
        if self.request.target != "serve":
            return f"the target {self.request.target} compiles nothing for a GPU"
        if any(arch.major != SM12X for arch in self.request.archs):
            return "FlashInfer finds modules by name alone, and would load these on a GPU that is no SM12x"
        return "--aot none" if self.request.aot == "none" else ""

    def wanted(self, overlay: Overlay | None = None) -> aot.WantedModules:
        """What to build.

        Args:
            overlay: of FlashInfer; computed from the series where none is given.

        Raises:
            BadInput: the request gets no modules.
            CheckFailed: a patch does not apply, or a source is not what is pinned.
        """
        if self.none:
            raise BadInput("there are no modules for this", why=self.none, do="--aot needed --arch 12.1f")
        overlay = overlay or of_stack.one(self.store, self.stack, UPSTREAM)
        (wheel,) = fetch.fetch_all(self.store, [self._wheel])
        parts = tuple(self.parts) if self.request.aot == "needed" else ()
        return aot.WantedModules(overlay, wheel, self.request.archs, self.request.platform, OPTIONS, parts)

    def built(self) -> aot.BuiltModules:
        """The modules that the store has for the series as it is.

        Raises:
            BadInput: there are none.
            CheckFailed: a file of them was changed.
        """
        wanted = self.wanted()
        if (found := aot.known(self.store, wanted)) is None:
            tree, archs = wanted.overlay.manifest.tree[:12], ", ".join(arch.text for arch in wanted.archs)
            why = f"the store has none of tree {tree} for {wanted.platform.oci}, {archs}"
            raise BadInput("there are no modules to look at", why=why, do=f"invoke aot.build --aot {self.request.aot}")
        return found

    def build(self, wanted: aot.WantedModules | None = None) -> aot.BuiltModules:
        """The modules, from the store or compiled.

        Raises:
            CheckFailed: a source does not compile or link.
            EnvironmentLacks: no compiler, or no environment that imports FlashInfer.
        """
        return aot.build(self.store, wanted or self.wanted(), self.python, at_once=self.request.jobs or None)

    def listed(self) -> list[aot.ListedModule]:
        """The modules, their sources, and which of them are compiled.

        Raises:
            CheckFailed: FlashInfer cannot be imported.
            EnvironmentLacks: no compiler, or no environment that imports FlashInfer.
        """
        return aot.listed(self.store, self.wanted(), self.python())

    def python(self) -> Path:
        """The Python of the environment that names the modules, made if missing.

        Raises:
            EnvironmentLacks: it cannot be made.
        """
        try:
            return venv.ensure(self.store, self.stack).python
        except (EnvironmentLacks, BadInput) as lacking:
            raise EnvironmentLacks(
                "no environment to ask FlashInfer for its modules",
                why=str(lacking),
                do="--aot none builds without them",
            ) from lacking

    def environment(self) -> tuple[fetch.Wanted, ...]:
        """Wheels of that environment, where it has to be made; none else."""
        if self.none:
            return ()
        try:
            return venv.wanting(self.store, self.stack)
        except (EnvironmentLacks, BadInput):  # the step says what is wrong, if it comes to that
            return ()

    def step(self, line: Pipeline, overlay: Overlay | None, base: Base) -> ImageModules:
        """The modules of an image.

        Args:
            line: of the build.
            overlay: of FlashInfer; None in a dry run that would have to compute it.
            base: of the image.

        Raises:
            CheckFailed: a source does not compile or link.
            EnvironmentLacks: no compiler, no environment that imports FlashInfer, or one newer than the base.
        """
        if self.none:
            say(f"[ none ] aot: {self.none}")
            return ImageModules(None, NO_MODULES if self.request.target == "serve" else "", self.none)
        later = overlay is None or (self.request.dry and fetch.held(self.store, self._wheel) is None)
        wanted = None if later else self.wanted(overlay)
        known = aot.known(self.store, wanted) if wanted else None
        if wanted and not known:
            say(f"  compiling FlashInfer's modules{self._cost()}; with --aot none a server does it when it starts")
        found = line.step(
            "aot",
            inputs={
                "overlay flashinfer": wanted.overlay.digest if wanted else None,
                "archs": ",".join(arch.text for arch in self.request.archs),
                "platform": self.request.platform.oci,
                "toolchain": tools.identity(toolchain.choose(self.request.platform)),
                "options": key_of(OPTIONS, self.request.aot),
                "all": aot.key(wanted) if wanted else None,
            },
            look=lambda: known,
            make=lambda: self.build(wanted),
            shows=lambda modules: modules.words,
        )
        if found is not None:
            fits(found, base)
        return ImageModules(found, found.facts.key if found else None)

    @property
    def _wheel(self) -> fetch.Wanted:
        package = self.stack.upstreams[UPSTREAM].package
        wheels = venv.upstream_wheels(self.stack, "serve", self.request.platform)
        return next(one for one in wheels if one.package == package)

    def _cost(self) -> str:
        """What compiling cost where it was measured, for people; empty where it was not."""
        choice = [] if self.request.aot == "all" else [self.request.aot]
        name = "-".join(["aot", *choice, *(arch.text for arch in self.request.archs), self.request.platform.debian])
        path = RESULTS / "flashinfer" / f"{name}.json"
        if not path.is_file():
            return ""
        seconds = json.loads(path.read_bytes())["totals"]["cpu_seconds"]
        return f" ({seconds / 60:.0f} CPU minutes when measured)"


def fits(modules: aot.BuiltModules, base: Base) -> None:
    """Hold what the modules ask of the C and C++ libraries against what a base has.

    Raises:
        EnvironmentLacks: this machine's compiler is newer than the base's libraries.
    """
    for module in modules.facts.modules:
        if wrong := too_new(module.versions, base.glibc):
            raise EnvironmentLacks(
                f"{module.name} would not load in this image",
                why="; ".join(wrong),
                do="--base ngc, a machine with an older compiler, or --aot none",
            )
