"""Tasks that look at FlashInfer's modules: those of the store, or of an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from invoke.context import Context
from invoke.tasks import task

from sparkforge.cli.common import JSON, STACK, opened, put
from sparkforge.core import console

_OUT = "file for the result, as JSON"
_FOLDER = "folder of modules with aot.json; the store's for the series as it is where none is named"
_AOT = "which of the store's modules: needed or all"


@task(
    positional=["image"],
    help={
        "image": "tag of an image; the store's modules are checked where none is named",
        "folder": _FOLDER,
        "aot": _AOT,
        "capability": "compute capability of the device that is not here",
        "without": "as if this module were not there, to see that it is missed",
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
    """Run vLLM's routes to FlashInfer without a compiler: every module that it asks for must be there and load."""
    from sparkforge.engine import choose
    from sparkforge.image import module_check as checking
    from sparkforge.image import module_step as modules
    from sparkforge.image import request
    from sparkforge.serving import carried

    of_stack, store = opened(stack, as_json=json)
    options = ("--capability", capability, *(["--without", without] if without else []))
    if image:
        what, holds = image, choose.find(store, image, engine)
        subject = checking.of_image(holds, image)
        report = checking.in_image(holds, image, options=(*options, *subject.options))
    else:
        at = (
            Path(folder)
            if folder
            else modules.built(store, of_stack, request.parse(of_stack, aot=aot), carried.modules()).folder
        )
        what, subject = str(at), checking.of_folder(store, of_stack, at)
        report = checking.in_environment(store, of_stack, at, options=(*options, *subject.options))
    if out:
        _write(Path(out), report.result(subject, options))
    if json:
        put(report.plain())
    else:
        print(console.table(checking.HEAD, report.rows()))
    report.demand(what)
    console.say(f"{what}: {len(report.modules)} modules asked for on {len(report.routes)} routes, all there")


@task(
    help={
        "folder": _FOLDER,
        "aot": _AOT,
        "platform": "linux/amd64 or linux/arm64; this machine's where none is named",
        "arch": "architectures of the modules, such as 12.1f",
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
    from sparkforge.image import module_step as modules
    from sparkforge.image import request
    from sparkforge.inputs import toolchain
    from sparkforge.inspect import module_audit as auditing
    from sparkforge.serving import carried

    of_stack, store = opened(stack, as_json=json)
    asked = request.parse(of_stack, arch=arch, platform=platform, aot=aot)
    at = Path(folder) if folder else modules.built(store, of_stack, asked, carried.modules()).folder
    report = auditing.audit(at, toolchain.inspector(store), say=console.say)
    if out:
        _write(Path(out), report)
    if json:
        put(report)
    else:
        print(console.table(auditing.HEAD, [module.row() for module in report.modules]))
    report.demand(str(at))
    console.say(f"{at}: sound")


def _write(path: Path, value: Any) -> None:
    import msgspec

    from sparkforge.core.store import write_file

    write_file(path, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
