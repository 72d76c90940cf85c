"""A virtual environment with a target's published wheels, for the intent tests of patches and for trying things."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from sparkforge.core import proc
from sparkforge.core.errors import EnvironmentLacks
from sparkforge.core.hashing import key_of
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store
from sparkforge.inputs import fetch
from sparkforge.inputs.recipes import Base, Stack, Target
from sparkforge.inputs.wheelhouse import Wheelhouse, resolve

_KIND = "venvs"


@dataclass(frozen=True)
class Venv:
    """A finished environment, and whether it was there already."""

    path: Path
    python: Path
    cached: bool


def wheels(store: Store, stack: Stack, target: Target, platform: Platform, base: Base) -> Wheelhouse:
    """Locked wheels of a target, then its upstream wheels.

    Raises:
        BadInput: there is no such lock.
        EnvironmentLacks: the index does not answer.
    """
    locked = resolve(store, stack.lock(target, platform, base.python), platform, base.python, base.glibc)
    pinned = upstream_wheels(stack, target, platform)
    return Wheelhouse(key_of(locked.key, [item.file.sha256 for item in pinned]), (*locked.wanted, *pinned))


def upstream_wheels(stack: Stack, target: Target, platform: Platform) -> tuple[fetch.Wanted, ...]:
    """The published wheels on which overlays are laid, by exact name."""
    found = []
    for name, upstream in stack.upstreams.items():
        build = upstream.build(target)
        part = "cpu.wheels" if build.package != upstream.package else "wheels"
        found.append(
            fetch.Wanted(build.wheels[platform.oci], build.package, stack.where(name, f"{part}.{platform.oci}"))
        )
    return tuple(found)


def base_for(stack: Stack, python: tuple[int, int]) -> Base:
    """The base whose locks fit a version of Python.

    Raises:
        EnvironmentLacks: there is no lock for it.
    """
    for base in stack.bases.values():
        if base.python == f"{python[0]}.{python[1]}":
            return base
    known = ", ".join(sorted({base.python for base in stack.bases.values()}))
    what, do = (
        f"there is no runtime lock for Python {python[0]}.{python[1]}",
        f"python{known.split(', ')[0]} -m venv .venv",
    )
    raise EnvironmentLacks(what, why=f"{stack.name} has locks for {known}", do=f"{do}, then install again")


def wanting(store: Store, stack: Stack, target: Target = "cpu") -> tuple[fetch.Wanted, ...]:
    """Every wheel that `ensure` needs; none if the environment exists.

    Raises:
        EnvironmentLacks: no lock for this Python, or the index does not answer.
    """
    house = wheels(store, stack, target, Platform.host(), base_for(stack, sys.version_info[:2]))
    return () if store.has(_KIND, _key(house)) else house.wanted


def _key(house: Wheelhouse) -> str:
    return key_of("venv 1", house.key, sys.version, Platform.host().oci)


def ensure(store: Store, stack: Stack, target: Target = "cpu") -> Venv:
    """Environment of a target for this machine and Python; made if the store has none.

    Raises:
        EnvironmentLacks: no lock for this Python, or the index does not answer.
        CheckFailed: a wheel does not match its pin.
    """
    base = base_for(stack, sys.version_info[:2])
    platform = Platform.host()
    house = wheels(store, stack, target, platform, base)
    key = _key(house)
    final = store.path(_KIND, key)
    python = final / "bin" / "python"
    if final.is_dir():
        return Venv(final, python, cached=True)
    files = fetch.fetch_all(store, house.wanted)
    with store.writing(_KIND, key) as folder:
        # uv writes paths into scripts, so it makes the environment relocatable.
        uv = [sys.executable, "-m", "uv"]
        proc.run([*uv, "venv", "--quiet", "--relocatable", "--allow-existing", "--python", sys.executable, folder])
        proc.run(
            [*uv, "pip", "install", "--quiet", "--offline", "--no-deps", "--no-config", "--python", folder, *files],
            error=EnvironmentLacks,
        )
    return Venv(final, python, cached=False)


if __name__ == "__main__":  # the environment of the `cpu` target, made where it is not there: its folder
    from sparkforge.inputs.recipes import load_stack

    print(ensure(Store.open(), load_stack()).path)
