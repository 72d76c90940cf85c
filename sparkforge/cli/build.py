"""Tasks that make images, run them, and lay overlays without one."""

from __future__ import annotations

from pathlib import Path

from invoke.context import Context
from invoke.tasks import task

from sparkforge.cli.common import JSON, STACK, opened, put
from sparkforge.core import console
from sparkforge.core.paths import shown

_ENGINE = "docker, buildah or auto"
_PLATFORM = "linux/arm64 or linux/amd64; default: this machine's"


@task(
    help={
        "arch": "architectures that kernels are compiled for, such as 12.1f",
        "target": "serve, or cpu for a machine without a GPU",
        "platform": _PLATFORM,
        "base": "ngc, bootstrap or auto",
        "engine": _ENGINE,
        "locked": "refuse what is not pinned or not recorded",
        "dry-run": "print the plan and do nothing",
        "aot": "FlashInfer's modules to compile now: needed (by parts that are on by default), all, or none",
        "jobs": "compilers at once for these modules; default: one a core, fewer if memory is short",
        "tag": "name of the image instead of the usual one",
        "json": "print the manifest as JSON and nothing else",
        "stack": STACK,
    }
)
def build(
    _: Context,
    arch: str = "12.1f",
    target: str = "serve",
    platform: str = "",
    base: str = "auto",
    engine: str = "auto",
    locked: bool = False,
    dry_run: bool = False,
    aot: str = "needed",
    jobs: int = 0,
    tag: str = "",
    json: bool = False,
    stack: str = "vllm-0.21",
) -> None:
    """Build an image; steps whose inputs did not change are not repeated."""
    from sparkforge.image import chain, request
    from sparkforge.serving import carried
    from sparkforge.serving.load import catalogue

    of_stack, store = opened(stack, as_json=json)
    asked = request.parse(
        of_stack,
        arch=arch,
        target=target,
        platform=platform,
        base=base,
        engine=engine,
        locked=locked,
        dry=dry_run,
        tag=tag,
        aot=aot,
        jobs=jobs,
    )
    known = catalogue()
    profiles = carried.text(of_stack.name, asked.target, known)
    built = chain.build(store, of_stack, asked, profiles=profiles, parts=carried.modules(known))
    if json:
        put(built.as_json())
    elif built.image:
        print(built.image)


@task(
    help={
        "check": "only say whether the locks are current; asks no index",
        "upgrade": "take the newest versions that the inputs allow",
        "stack": STACK,
    }
)
def lock(_: Context, check: bool = False, upgrade: bool = False, stack: str = "vllm-0.21") -> None:
    """Write the runtime locks again, for both platforms and every base's Python."""
    from sparkforge.inputs import lock as locks

    of_stack, store = opened(stack)
    if check:
        locks.check(of_stack)
    else:
        for path in locks.make(of_stack, store, upgrade=upgrade):
            print(shown(path))


@task(
    help={
        "into": "virtual environment, or a site-packages folder, that holds the pinned wheels",
        "revert": "restore the files that its wheels installed",
        "stack": STACK,
    }
)
def overlay(_: Context, into: str, revert: bool = False, stack: str = "vllm-0.21") -> None:
    """Lay the series over the wheels of a virtual environment, or take it off again."""
    from sparkforge.overlay import into_venv as venv

    if revert:
        lines = venv.take_off(Path(into))
    else:
        from sparkforge.overlay.of_stack import overlays

        of_stack, store = opened(stack)
        lines = venv.lay(Path(into), overlays(store, of_stack))
    for line in lines:
        console.say(line)


@task(
    help={
        "image": "tag of an image; default: the usual one of the target",
        "target": "cpu, or serve, which needs a GPU",
        "arch": "architectures of the image",
        "platform": _PLATFORM,
        "engine": _ENGINE,
        "model": "folder of a model; default: a tiny random gpt-oss, made here",
        "venv": "smoke a virtual environment with vLLM instead of an image",
        "json": JSON,
        "stack": STACK,
    }
)
def smoke(
    _: Context,
    image: str = "",
    target: str = "cpu",
    arch: str = "12.1f",
    platform: str = "",
    engine: str = "auto",
    model: str = "",
    venv: str = "",
    json: bool = False,
    stack: str = "vllm-0.21",
) -> None:
    """Start a server from an image, make it speak, check what it says, stop and remove it."""
    from sparkforge.image import request
    from sparkforge.smoke.run import image_site
    from sparkforge.smoke.run import smoke as run
    from sparkforge.smoke.sites import Site
    from sparkforge.smoke.venv_site import VenvSite

    of_stack, store = opened(stack, as_json=json)
    if venv:
        site: Site = VenvSite(Path(venv).absolute())
    elif image:
        site = image_site(store, image, engine)
    else:
        usual = request.parse(of_stack, arch=arch, target=target, platform=platform, engine=engine).tag
        site = image_site(store, usual, engine, target=target)
    report = run(site, store=store, model=Path(model) if model else None)
    print(report.json().decode() if json else report.table())
    report.demand()


@task(
    help={
        "platform": "what images will be built for; default: this machine's platform",
        "dry-run": "print the plan and do nothing",
    }
)
def setup(_: Context, platform: str = "", dry_run: bool = False) -> None:
    """Install and start what a build needs and this machine lacks: an engine, mmdebstrap, compilers."""
    from sparkforge.core.platforms import Platform
    from sparkforge.core.store import Store
    from sparkforge.host import setup as host

    host.setup(Store.open(), Platform.parse(platform) if platform else Platform.host(), dry_run=dry_run)
