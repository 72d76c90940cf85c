"""Tasks on FlashInfer's modules, compiled ahead of time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from invoke.context import Context
from invoke.tasks import task

from sparkforge.cli.common import JSON, STACK, opened, put
from sparkforge.core import console

if TYPE_CHECKING:
    from sparkforge.image.module_step import ModuleJob

_ARCH = "architectures of SM12x, such as 12.1f"
_PLATFORM = "linux/amd64 or linux/arm64; by default this machine's"
_AOT = "needed: modules of parts that are on by default; all: those of every part"
_FOLDER = "folder of modules with aot.json; by default the store's, for the present series"
_OUT = "file for the result, as JSON"


def _job(stack: str, *, as_json: bool, **options: Any) -> ModuleJob:
    from sparkforge.image import request
    from sparkforge.image.module_step import ModuleJob
    from sparkforge.serving import carried

    of_stack, store = opened(stack, as_json=as_json)
    return ModuleJob(store, of_stack, request.parse(of_stack, **options), carried.modules())


@task(
    help={
        "aot": _AOT,
        "arch": _ARCH,
        "platform": _PLATFORM,
        "jobs": "compilers at a time; by default one a core, fewer if memory is short",
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
    made = _job(stack, as_json=json, aot=aot, arch=arch, platform=platform, jobs=jobs).build()
    console.say(f"{made.folder}: {made.words}")
    if json:
        said = msgspec.to_builtins(made.facts)
        put({"folder": str(made.folder), "compiled": made.compiled, "linked": made.linked, **said})
    else:
        rows = [(one.name, console.mib(one.size), ", ".join(one.needed)) for one in made.facts.modules]
        print(console.table(("module", "size", "needs"), rows))


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
    found = _job(stack, as_json=json, aot=aot, arch=arch, platform=platform).listed()
    if json:
        put(found)
        return
    rows = [(one.name, len(one.sources), sum(one.sources.values()), ", ".join(one.left_out)) for one in found]
    print(console.table(("module", "sources", "in the store", "left out; only for"), rows))


@task(
    positional=["image"],
    help={
        "image": "tag of an image; by default the store's modules are checked",
        "folder": _FOLDER,
        "aot": _AOT,
        "capability": "compute capability of the device, which need not be here",
        "without": "hide this module, to see that it is missed",
        "engine": "docker, buildah or auto",
        "out": _OUT,
        "json": JSON,
        "stack": STACK,
    },
)
def check(
    _: Context,
    image: str = "",
    folder: str = "",
    aot: str = "needed",
    capability: str = "12.1",
    without: str = "",
    engine: str = "auto",
    out: str = "",
    json: bool = False,
    stack: str = "vllm-0.21",
) -> None:
    """Run vLLM's routes to FlashInfer without a compiler: every module that it asks for must exist and load."""
    from sparkforge.engine import choose
    from sparkforge.image import module_check as checking
    from sparkforge.results.proofs import files_of
    from sparkforge.results.provenance import Run

    run = Run(__file__) if out else None
    job = _job(stack, as_json=json, aot=aot)
    options = ("--capability", capability, *(["--without", without] if without else []))
    if image:
        report = checking.in_image(choose.find(job.store, image, engine), image, options=options)
    else:
        at = Path(folder) if folder else job.built().folder
        report = checking.in_environment(job.store, job.stack, at, options=options)
    if run:
        run.read(checking.SCRIPTS.glob("aot*.py"))
        for upstream, tree in report.subject.trees.items():
            run.of_tree(upstream, tree, files_of(job.store, tree), report.imported)
        run.write(Path(out), report.plain())
    put(report.plain()) if json else print(console.table(checking.HEAD, report.rows()))
    report.demand()
    console.say(f"{len(report.modules)} modules asked for on {len(report.routes)} routes, all there")


@task(
    help={
        "folder": _FOLDER,
        "aot": _AOT,
        "platform": _PLATFORM,
        "arch": _ARCH,
        "out": _OUT,
        "json": JSON,
        "stack": STACK,
    }
)
def audit(
    _: Context,
    folder: str = "",
    aot: str = "needed",
    platform: str = "",
    arch: str = "12.1f",
    out: str = "",
    json: bool = False,
    stack: str = "vllm-0.21",
) -> None:
    """Read the modules' machine code: architectures, block-scaled MMA in every tile, TMA, PDL, fences, traps."""
    from sparkforge.inputs import toolchain
    from sparkforge.inspect import module_audit as auditing
    from sparkforge.inspect import module_facts
    from sparkforge.results.proofs import files_of
    from sparkforge.results.provenance import Run

    run = Run(__file__) if out else None
    job = _job(stack, as_json=json, aot=aot, arch=arch, platform=platform)
    at = Path(folder) if folder else job.built().folder
    report = auditing.audit(at, toolchain.inspector(job.store), say=console.say)
    if run:
        made = module_facts.read(at)
        run.of_tree("flashinfer", made.tree, files_of(job.store, made.tree), made.reads)
        run.write(Path(out), msgspec.to_builtins(report))
    put(report) if json else print(console.table(auditing.HEAD, [module.row() for module in report.modules]))
    report.demand(str(at))
    console.say(f"{at}: sound")
