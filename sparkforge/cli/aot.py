"""Tasks on FlashInfer's modules, compiled ahead of time."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from invoke.context import Context
from invoke.tasks import task

from sparkforge.cli.common import JSON, STACK, opened, put
from sparkforge.core import console
from sparkforge.inspect.module_facts import BuiltModule

_ARCH = "architectures of SM12x, such as 12.1f"
_PLATFORM = "linux/amd64 or linux/arm64; this machine's where none is named"
_AOT = "needed: modules of parts that are on by default; all: those of every part"


@task(
    help={
        "aot": _AOT,
        "arch": _ARCH,
        "platform": _PLATFORM,
        "jobs": "compilers at once; one a core where none is said, fewer where memory is short",
        "json": JSON,
        "stack": STACK,
    }
)
def build(
    _: Context,
    aot: str = "needed",
    arch: str = "12.1f",
    platform: str = "",
    jobs: int = 0,
    json: bool = False,
    stack: str = "vllm-0.21",
) -> None:
    """Compile FlashInfer's modules for gpt-oss; objects whose sources did not change are not compiled again."""
    from sparkforge.image import module_step as modules
    from sparkforge.image import request
    from sparkforge.serving import carried

    of_stack, store = opened(stack, as_json=json)
    asked = request.parse(of_stack, arch=arch, platform=platform, aot=aot, jobs=jobs)
    made = modules.made(store, of_stack, asked, modules.alone(store, of_stack, asked, carried.modules()))
    console.say(f"{made.folder}: {made.words}")
    if json:
        said = msgspec.to_builtins(made.facts)
        put({"folder": str(made.folder), "compiled": made.compiled, "linked": made.linked, **said})
    else:
        print(_table(made.facts.modules))


@task(name="list", help={"aot": _AOT, "arch": _ARCH, "platform": _PLATFORM, "json": JSON, "stack": STACK})
def names(
    _: Context,
    aot: str = "needed",
    arch: str = "12.1f",
    platform: str = "",
    json: bool = False,
    stack: str = "vllm-0.21",
) -> None:
    """Name the modules and their sources, and say which objects the store has; compiles nothing."""
    from sparkforge.image import module_step as modules
    from sparkforge.image import request
    from sparkforge.serving import carried

    of_stack, store = opened(stack, as_json=json)
    asked = request.parse(of_stack, arch=arch, platform=platform, aot=aot)
    found = modules.listed(store, of_stack, modules.alone(store, of_stack, asked, carried.modules()))
    if json:
        put(found)
        return
    rows = [(one.name, len(one.sources), sum(one.sources.values()), ", ".join(one.left_out)) for one in found]
    print(console.table(("module", "sources", "in the store", "left out; only for"), rows))


def _table(modules: Iterable[BuiltModule]) -> str:
    rows = [(one.name, console.mib(one.size), ", ".join(one.needed)) for one in modules]
    return console.table(("module", "size", "needs"), rows)
