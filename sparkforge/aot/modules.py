"""FlashInfer's modules, from the store or compiled: plan, objects, libraries, and the folder that an image gets.

A killed build goes on where it stopped: only sources without an object are compiled.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkforge.aot import gather, jobs, link, plan, selection, tools
from sparkforge.aot.objects import CompiledObject, Objects, RootHashes, RootNames
from sparkforge.core.arch import Arch
from sparkforge.core.console import say
from sparkforge.core.hashing import key_of, sha256_file
from sparkforge.core.integrity import seal, sound
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store, remove
from sparkforge.inputs import toolchain
from sparkforge.inspect import module_facts as facts
from sparkforge.overlay.compute import Overlay

KIND = "aot"
_FORMAT = 1
_WORK = "aot-work"
_HEAVY = 11 * jobs.GIB  # measured: up to 10.3 GiB for a GEMM of CUTLASS,
_LIGHT = 3 * jobs.GIB  # up to 2.2 GiB for every other source


@dataclass(frozen=True)
class WantedModules:
    """What to build.

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
class BuiltModules:
    """Modules in the store.

    Attributes:
        folder: NAME/NAME.so and aot.json.
        facts: what aot.json says.
        compiled: objects that were compiled now.
        linked: modules that were linked now.
        seconds: wall time of this build.
        cpu_seconds: of the compilers that ran in it.
    """

    folder: Path
    facts: facts.AotFacts
    compiled: int = 0
    linked: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def words(self) -> str:
        """What was done, for people."""
        if not self.compiled and not self.linked:
            return f"{len(self.facts.modules)} modules reused"
        done = f"compiled {self.compiled} of {len(self.facts.units)} objects in {self.seconds:.0f} s"
        return f"{len(self.facts.modules)} modules, {done} (CPU {self.cpu_seconds:.0f} s)"


@dataclass(frozen=True)
class ListedModule:
    """A module as FlashInfer names it.

    Attributes:
        name: of the module.
        sources: for each source, whether the store has its object.
        left_out: parts that need it, where it is left out because they are off by default.
    """

    name: str
    sources: dict[str, bool]
    left_out: list[str]


def key(wanted: WantedModules) -> str:
    """Hash of everything that a build reads; fetches nothing."""
    code = [Path(module.__file__ or "") for module in (plan, link, gather, facts, selection)]
    return key_of(
        _FORMAT,
        [wanted.overlay.digest, sha256_file(wanted.wheel)],
        [arch.text for arch in wanted.archs],
        [dict(wanted.options), [[one.part, one.on, one.modules] for one in wanted.parts]],
        tools.identity(toolchain.choose(wanted.platform)),
        [*code, Path(__file__).with_name("describe.py")],
    )


def known(store: Store, wanted: WantedModules) -> BuiltModules | None:
    """The modules if the store has them.

    Raises:
        CheckFailed: a stored file was changed.
    """
    folder = store.path(KIND, key(wanted))
    return BuiltModules(folder, facts.read(folder)) if sound(folder) else None


def build(
    store: Store, wanted: WantedModules, python: Callable[[], Path], *, at_once: int | None = None
) -> BuiltModules:
    """The modules, from the store or compiled.

    Args:
        store: objects, libraries and results are kept here.
        wanted: what to build.
        python: gives an interpreter that has torch; called only if something must be compiled.
        at_once: most compilers at a time; None is one a core. Memory may allow fewer.

    Raises:
        BadInput: a part needs a module that FlashInfer does not list.
        CheckFailed: a source does not compile or link.
        EnvironmentLacks: no compiler, or the index does not have the toolchain.
    """
    begun = time.monotonic()
    named = key(wanted)
    with store.lock(f"{KIND}-{wanted.platform.debian}"):
        if (there := known(store, wanted)) is not None:
            return there
        ready = tools.ready(store, wanted.platform)
        with _planned(store, wanted, ready, python(), wanted.platform.debian) as (objects, modules, left_out):
            planned = [one for one in modules if one.name not in left_out]
            compiled, cpu = _objects(objects, planned, at_once or jobs.cores())
        made = []
        for module in planned:
            of_module = [compiled[unit] for unit in module.units]
            made.append(gather.MadeModule(module, of_module, link.link(store, module, of_module, ready)))
        with store.writing(KIND, named) as folder:
            for one in made:
                (folder / one.module.name).mkdir()
                os.link(one.linked.path, folder / one.module.name / one.linked.path.name)
            facts.write(folder, gather.facts_of(folder, made, wanted.overlay, wanted.archs, ready, left_out=left_out))
            seal(folder)
    folder = store.path(KIND, named)
    new = {one.key for one in compiled.values() if not one.cached}
    linked = sum(not one.linked.cached for one in made)
    return BuiltModules(folder, facts.read(folder), len(new), linked, time.monotonic() - begun, cpu)


def listed(store: Store, wanted: WantedModules, python: Path) -> list[ListedModule]:
    """The modules and their sources; compiles nothing.

    Raises:
        CheckFailed: FlashInfer cannot be imported.
        EnvironmentLacks: no compiler, or the index does not have the toolchain.
    """
    ready = tools.ready(store, wanted.platform)
    with _planned(store, wanted, ready, python, f"list{os.getpid()}") as (objects, modules, left_out):
        return [
            ListedModule(
                one.name,
                {unit.source: objects.find(unit) is not None for unit in one.units},
                left_out.get(one.name, []),
            )
            for one in modules
        ]


@contextmanager
def _planned(
    store: Store, wanted: WantedModules, ready: tools.ModuleTools, python: Path, name: str
) -> Iterator[tuple[Objects, list[plan.ModulePlan], dict[str, list[str]]]]:
    """The objects of a root that is laid out for this while, every module, and those to leave out."""
    with _work(store, name) as root:
        plan.lay(root, wanted.wheel, wanted.overlay, ready)
        modules = plan.describe(root, python, wanted.archs, wanted.options)
        left_out = selection.left_out([one.name for one in modules], wanted.parts)
        yield Objects(store, ready, root, RootHashes(root), RootNames.of(root, ready)), modules, left_out


@contextmanager
def _work(store: Store, name: str) -> Iterator[Path]:
    """An empty folder that always has the same path for a name; one process has it at a time.

    The store's sweep removes what a killed run left in it, and leaves it alone while someone has it.
    """
    above = store.root / _WORK
    above.mkdir(parents=True, exist_ok=True)
    with store.lock(f"{_WORK}-{name}"):
        root = above.resolve() / f".partial-{name}-root"
        if root.exists():
            remove(root)
        root.mkdir()
        try:
            yield root
        finally:
            remove(root)


def _objects(
    objects: Objects, modules: Sequence[plan.ModulePlan], at_once: int
) -> tuple[dict[plan.CompileUnit, CompiledObject], float]:
    """The object of every unit, and the CPU seconds of compilers now. Units with the same command are compiled once."""
    units = [unit for module in modules for unit in module.units]
    found = {unit: objects.find(unit) for unit in units}
    first = {unit.identity: unit for unit in reversed(units) if found[unit] is None}
    made: dict[tuple[str, ...], CompiledObject] = {}
    if first:
        needs = {unit: objects.last_peak(unit) or _expected(unit) for unit in first.values()}
        say(f"  {len(first)} of {len(units)} objects to compile, {at_once} at once where memory allows")
        begun = time.monotonic()

        def make(unit: plan.CompileUnit) -> None:
            one = made[unit.identity] = objects.make(unit)
            say(
                f"  [{len(made)}/{len(first)}] {Path(unit.source).name}: {one.cost.cpu_seconds:.0f} CPU s, "
                f"{one.cost.peak_bytes / jobs.GIB:.1f} GiB, {time.monotonic() - begun:.0f} s so far"
            )

        longest_first = sorted(first.values(), key=lambda unit: -needs[unit])
        queue = jobs.MemoryQueue(longest_first, lambda unit: needs[unit], waits=lambda text: say(f"  {text}"))
        jobs.each(queue, make, at_once)
    cpu = sum(one.cost.cpu_seconds for one in made.values())
    return {unit: found[unit] or made[unit.identity] for unit in units}, cpu


def _expected(unit: plan.CompileUnit) -> int:
    """Memory to expect of a unit that was never compiled here."""
    return _HEAVY if "cutlass_instantiations" in unit.source else _LIGHT
