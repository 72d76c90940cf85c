"""FlashInfer's modules, from the store or compiled: plan, objects, libraries, and the folder that an image is given.

Killed at any point, the next run compiles what has no object yet and nothing else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkforge.aot import compiling, gather, jobs, link, plan, selection, tools
from sparkforge.aot.objects import Hashes, Objects, Tree
from sparkforge.core.arch import Arch
from sparkforge.core.hashing import key_of, sha256_file
from sparkforge.core.integrity import seal, sound
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store
from sparkforge.inputs import toolchain
from sparkforge.inspect import module_facts as facts
from sparkforge.overlay.compute import Overlay

KIND = "aot"
_FORMAT = 1


@dataclass(frozen=True)
class Wanted:
    """What is to be built.

    Attributes:
        overlay: of FlashInfer; with the wheel, the sources.
        wheel: FlashInfer's, pinned.
        archs: of SM12x, at least one.
        platform: machine that the modules are for.
        options: of `flashinfer.aot_gpt_oss.gen_modules`.
        parts: what parts of profiles need; modules that only parts need which are off are left out. () leaves out none.
    """

    overlay: Overlay
    wheel: Path
    archs: tuple[Arch, ...]
    platform: Platform
    options: Mapping[str, Any]
    parts: tuple[selection.PartModules, ...] = ()


@dataclass(frozen=True)
class Modules:
    """Built modules.

    Attributes:
        folder: NAME/NAME.so and aot.json.
        facts: what aot.json says.
        compiled: objects that were compiled now.
        linked: modules that were linked now.
        seconds: wall time of this build.
        cpu_seconds: of the compilers that ran in it.
    """

    folder: Path
    facts: facts.Facts
    compiled: int
    linked: int
    seconds: float
    cpu_seconds: float

    @property
    def words(self) -> str:
        """What was done, for people."""
        if not self.compiled and not self.linked:
            return f"{len(self.facts.modules)} modules reused"
        done = f"compiled {self.compiled} of {len(self.facts.units)} objects in {self.seconds:.0f} s"
        return f"{len(self.facts.modules)} modules, {done} (CPU {self.cpu_seconds:.0f} s)"


def key(wanted: Wanted) -> str:
    """Hash of all that a build reads; fetches nothing."""
    code = [Path(module.__file__ or "") for module in (plan, link, gather, facts, selection)]
    return key_of(
        _FORMAT,
        [wanted.overlay.digest, sha256_file(wanted.wheel)],
        [arch.text for arch in wanted.archs],
        [dict(wanted.options), [[one.part, one.on, one.modules] for one in wanted.parts]],
        tools.identity(toolchain.choose(wanted.platform)),
        [*code, Path(__file__).with_name("describe.py")],
    )


def known(store: Store, wanted: Wanted) -> Modules | None:
    """The modules if the store has them.

    Raises:
        CheckFailed: a stored file was changed.
    """
    folder = store.path(KIND, key(wanted))
    return Modules(folder, facts.read(folder), 0, 0, 0.0, 0.0) if sound(folder) else None


def build(store: Store, wanted: Wanted, python: Callable[[], Path], *, at_once: int | None = None) -> Modules:
    """The modules, from the store or compiled.

    Args:
        store: objects, libraries and results are kept here.
        wanted: what to build.
        python: an interpreter that has torch, made when it is asked for.
        at_once: most compilers at a time; None is one a core. Memory may allow fewer.

    Raises:
        CheckFailed: a source does not compile or link.
        EnvironmentLacks: no compiler, or the index does not have the toolchain.
    """
    begun = time.monotonic()
    named = key(wanted)
    with store.lock(f"{KIND}-{wanted.platform.debian}"):
        if (there := known(store, wanted)) is not None:
            return there
        ready = tools.ready(store, wanted.platform)
        with compiling.work(store, wanted.platform.debian) as root:
            plan.lay(root, wanted.wheel, wanted.overlay, ready)
            described = plan.describe(root, python(), wanted.archs, wanted.options)
            skipped = selection.left_out([one.name for one in described], wanted.parts)
            modules = [one for one in described if one.name not in skipped]
            found = Objects(store, ready, root, Hashes(root), Tree.of(root, ready))
            objects, cpu = compiling.objects_of(found, modules, at_once or jobs.cores())
        made = []
        for module in modules:
            of_module = [objects[unit] for unit in module.units]
            made.append(gather.Made(module, of_module, link.link(store, module, of_module, ready)))
        with store.writing(KIND, named) as folder:
            for one in made:
                (folder / one.module.name).mkdir()
                os.link(one.linked.path, folder / one.module.name / one.linked.path.name)
            facts.write(folder, gather.facts_of(folder, made, wanted.overlay, wanted.archs, ready, left_out=skipped))
            seal(folder)
    folder = store.path(KIND, named)
    compiled = {one.key for one in objects.values() if not one.cached}
    fresh = sum(not one.linked.cached for one in made)
    return Modules(folder, facts.read(folder), len(compiled), fresh, time.monotonic() - begun, cpu)


@dataclass(frozen=True)
class Listed:
    """A module as FlashInfer names it.

    Attributes:
        name: of the module.
        sources: whether the store has the object of each, as it would be compiled now.
        left_out: parts that need it, where it is left out because they are off by default.
    """

    name: str
    sources: dict[str, bool]
    left_out: list[str]


def listed(store: Store, wanted: Wanted, python: Path) -> list[Listed]:
    """The modules and their sources; compiles nothing.

    Raises:
        CheckFailed: FlashInfer cannot be imported.
        EnvironmentLacks: no compiler, or the index does not have the toolchain.
    """
    ready = tools.ready(store, wanted.platform)
    with compiling.work(store, f"list{os.getpid()}") as root:
        plan.lay(root, wanted.wheel, wanted.overlay, ready)
        modules = plan.describe(root, python, wanted.archs, wanted.options)
        objects = Objects(store, ready, root, Hashes(root), Tree.of(root, ready))
        skipped = selection.left_out([one.name for one in modules], wanted.parts)
        return [
            Listed(
                one.name,
                {unit.source: objects.find(unit) is not None for unit in one.units},
                skipped.get(one.name, []),
            )
            for one in modules
        ]
