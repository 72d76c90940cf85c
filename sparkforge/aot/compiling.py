"""Every object of a list of modules: found, or compiled as cores and memory allow, where a killed run left off."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sparkforge.aot import jobs, plan
from sparkforge.aot.objects import Object, Objects
from sparkforge.core.console import say
from sparkforge.core.store import Store, remove

_WORK = "aot-work"
_HEAVY = 11 * jobs.GIB  # measured: up to 10.3 GiB for a GEMM of CUTLASS,
_LIGHT = 3 * jobs.GIB  # up to 2.2 GiB for every other source


@contextmanager
def work(store: Store, name: str) -> Iterator[Path]:
    """An empty folder, always the same one for a name, that one process has at a time.

    A sweep of the store removes what a killed run left in it, and leaves it alone while someone has it.
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


def objects_of(objects: Objects, modules: Sequence[plan.Module], at_once: int) -> tuple[dict[plan.Unit, Object], float]:
    """Every unit's object. Units of two modules that are one command are compiled once."""
    units = [unit for module in modules for unit in module.units]
    found = {unit: objects.find(unit) for unit in units}
    missing = jobs.first([unit for unit in units if found[unit] is None], _command)
    made: dict[tuple[str, tuple[str, ...]], Object] = {}
    if missing:
        needs = {unit: objects.last_peak(unit) or _needs(unit) for unit in missing}
        missing.sort(key=lambda unit: -needs[unit])  # the long ones first, so that the end is not one of them alone
        say(f"  {len(missing)} of {len(units)} objects to compile, {at_once} at once where memory allows")
        begun, number = time.monotonic(), len(missing)

        def make(unit: plan.Unit) -> None:
            one = objects.make(unit)
            made[_command(unit)] = one
            say(
                f"  [{len(made)}/{number}] {Path(unit.source).name}: {one.cost.cpu_seconds:.0f} CPU s, "
                f"{one.cost.peak_bytes / jobs.GIB:.1f} GiB, {time.monotonic() - begun:.0f} s so far"
            )

        queue = jobs.Queue(missing, lambda unit: needs[unit], waits=lambda text: say(f"  {text}"))
        jobs.each(queue, make, at_once)
    cpu = sum(one.cost.cpu_seconds for one in made.values())
    return {unit: found[unit] or made[_command(unit)] for unit in units}, cpu


def _needs(unit: plan.Unit) -> int:
    """Memory to expect of a unit that was never compiled here."""
    return _HEAVY if "cutlass_instantiations" in unit.source else _LIGHT


def _command(unit: plan.Unit) -> tuple[str, tuple[str, ...]]:
    """What decides an object: two modules may name the same source with the same words."""
    return unit.source, unit.words
