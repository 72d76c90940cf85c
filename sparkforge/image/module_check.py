"""Are the modules that vLLM asks for there, and do they load? `images/checks/aot.py`, run beside them.

It runs in an image, or in an environment of this machine with the patched packages and a folder of modules in them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from sparkforge.aot import tools
from sparkforge.aot.selection import parts_without
from sparkforge.core import console, proc
from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.paths import IMAGES
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store
from sparkforge.engine.engine import Engine, Launch, Mount
from sparkforge.environments import patched, venv
from sparkforge.image.labels import NO_MODULES, OURS, PARTS_LEFT_OUT
from sparkforge.inputs.recipes import Stack
from sparkforge.inspect import module_facts as facts
from sparkforge.patches import place, trees

SCRIPTS = IMAGES / "checks"
SCRIPT = "aot.py"
HEAD = ("module", "state", "functions that are looked up", "asked for by")
_UPSTREAM = "flashinfer"
_TREE = f"{OURS}tree."
_INSIDE = "/run/sparkforge-checks"
_PYTHON = "/opt/venv/bin/python"
_SECONDS = 1800.0  # it takes a minute on a machine with nothing else to do
_OUT = "found.json"


class AskedModule(msgspec.Struct, frozen=True):
    """A module that was asked for; see `images/checks/aot_record.py`."""

    name: str
    routes: list[str]
    file: str
    problem: str
    functions: dict[str, bool]
    methods: dict[str, bool]
    calls: dict[str, int]
    missing: list[str]


class CheckedRoute(msgspec.Struct, frozen=True):
    """A route that was run: with which switches, what it asked for, and why it did not come to its end."""

    route: str
    env: dict[str, str]
    asked: list[str]
    failed: str


class CheckedModules(msgspec.Struct, frozen=True):
    """What was checked.

    Attributes:
        where: `image NAME` or `environment`.
        trees: git tree ids of the patched packages.
        aot: key of the set of modules.
        platform: of it.
        archs: that the modules are for.
        parts_out: parts of profiles whose modules were left out on purpose; their routes are not run.
    """

    where: str
    trees: dict[str, str]
    aot: str
    platform: str
    archs: list[str]
    parts_out: list[str]


class _Said(msgspec.Struct, frozen=True):
    """What the script writes.

    Attributes:
        capability: of the device that was not there.
        compiler: that could be reached; "" for none, as it must be.
        driver: library that stood for the driver's: its own name, or the path of a stub.
        modules: in the order in which they were asked for first.
        routes: that were run.
        problems: everything that is wrong, a line each.
        imported: files of vLLM and FlashInfer that the check imported, as site-packages has them.
    """

    capability: str
    compiler: str
    driver: str
    modules: list[AskedModule]
    routes: list[CheckedRoute]
    problems: list[str]
    imported: list[str] = []


class ModuleCheck(_Said, frozen=True, kw_only=True):
    """What the check found; also what the script writes.

    Attributes:
        subject: what was checked.
        options: words that the script was given.
    """

    subject: CheckedModules
    options: list[str]

    def rows(self) -> list[tuple[str, ...]]:
        """Under `HEAD`."""
        return [
            (
                module.name,
                "wrong" if module.problem or module.missing else "there",
                ", ".join([*module.functions, *(f".{name}" for name in module.methods)]),
                f"{module.routes[0]}{f' and {others} more' if (others := len(module.routes) - 1) else ''}",
            )
            for module in self.modules
        ]

    def plain(self) -> dict[str, Any]:
        """For `--json` and for results: without this machine's folders."""
        said = msgspec.to_builtins(self)
        del said["imported"]  # a result says it with their content
        for module in said["modules"]:
            module["file"] = "/".join(Path(module["file"]).parts[-2:])
        driver = Path(self.driver).name if "/" in self.driver else self.driver
        return {"check": "aot", **said.pop("subject"), **said, "driver": driver, "passed": not self.problems}

    def demand(self) -> None:
        """Raise if anything is wrong.

        Raises:
            CheckFailed: a module is missing, does not load, lacks a function, or a route does not run.
        """
        if self.problems:
            raise CheckFailed(
                f"{self.subject.where} would need a compiler when it serves",
                why="\n       ".join(self.problems),
                do="invoke aot.build, and build the image again",
            )


def in_environment(store: Store, stack: Stack, folder: Path, *, options: tuple[str, ...] = ()) -> ModuleCheck:
    """Check a folder of modules, `NAME/NAME.so`, with the patched packages on this machine.

    Args:
        store: that has the environment, or gets it.
        stack: whose series are laid over the packages.
        folder: with `aot.json`.
        options: more words for the script.

    Raises:
        CheckFailed: the modules are of other sources, or the script did not come to its end.
    """
    said = facts.read(folder)
    ids = {name: trees.of(store, stack, name).id for name in stack.upstreams}
    if said.tree != ids[_UPSTREAM]:
        why = f"they were compiled from the tree {said.tree[:12]}, the series leads to {ids[_UPSTREAM][:12]}"
        raise CheckFailed(f"{folder} holds modules of other sources", why=why, do="invoke aot.build")
    subject = CheckedModules(
        "environment", ids, said.key, said.platform, said.archs, list(parts_without(said.left_out))
    )
    python = venv.ensure(store, stack).python
    stub = tools.ready(store, Platform.host()).more / "lib" / "libcuda.so"
    with patched.default(store, stack.upstreams, place.places(stack, store), python) as env, _work() as work:
        laid = dict(env.lay(ids))
        _lay(laid, folder, said.tree)
        variables = {**_plain(), **laid, "FLASHINFER_CUDA_ARCH_LIST": " ".join(said.archs)}
        given = [*options, *_left_out(subject)]
        words: list[str | Path] = [python, SCRIPTS / SCRIPT, "--stub", stub, "--out", work / _OUT, *given]
        done = proc.run(words, cwd=work, env=variables, check=False, timeout=_SECONDS)
        return _read(work, subject, given, done.code, (done.err or done.out).decode(errors="replace"))


def in_image(
    engine: Engine, image: str, *, options: tuple[str, ...] = (), mounts: tuple[Mount, ...] = ()
) -> ModuleCheck:
    """Check the modules of an image, inside of it and without a network.

    Args:
        engine: that holds it.
        image: its tag.
        options: more words for the script.
        mounts: laid over the image.

    Raises:
        BadInput: it is no image of ours, or holds no modules.
        CheckFailed: there is no such image, or the script did not come to its end.
    """
    subject = _of_image(engine, image)
    given = [*options, *_left_out(subject)]
    with _work() as work:
        for script in SCRIPTS.glob("aot*.py"):
            shutil.copy(script, work)
        inside = Mount(work, _INSIDE)
        words = [f"{_INSIDE}/{SCRIPT}", "--out", f"{_INSIDE}/{_OUT}", *given]
        container = engine.run(Launch(image, words, mounts=[inside, *mounts], entrypoint=_PYTHON, network="none"))
        try:
            status = container.wait(timeout=_SECONDS)
            return _read(work, subject, given, status, container.logs())
        finally:
            container.remove()


def _of_image(engine: Engine, image: str) -> CheckedModules:
    said = engine.labels(image)
    ids = {name.removeprefix(_TREE): tree for name, tree in said.items() if name.startswith(_TREE)}
    aot = said.get(f"{OURS}aot", "")
    if not ids or aot in {"", NO_MODULES}:
        why = f"its label {OURS}aot is {aot!r}"
        raise BadInput(f"{image} holds no modules that were compiled ahead of time", why=why, do="invoke build")
    archs = said[f"{OURS}archs"].split(",")
    parts = [part for part in said.get(PARTS_LEFT_OUT, "").split(",") if part]
    return CheckedModules(f"image {image}", ids, aot, said[f"{OURS}platform"], archs, parts)


def _left_out(subject: CheckedModules) -> list[str]:
    return ["--parts-out", ",".join(subject.parts_out)] if subject.parts_out else []


def _plain() -> dict[str, str]:
    """Our environment without what would change FlashInfer, vLLM or another Python."""
    ours = ("PYTHON", "VLLM_", "FLASHINFER_", "CUDA_", "TORCH_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def _lay(laid: Mapping[str, str], folder: Path, tree: str) -> None:
    """Put the modules where the package that was laid looks for them."""
    sites = [Path(one) for one in laid["PYTHONPATH"].split(os.pathsep)]
    (package,) = [site / "flashinfer" for site in sites if (site / "flashinfer").is_dir()]
    link = package / "data" / "aot" / tree
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)


@contextmanager
def _work() -> Iterator[Path]:
    """A folder that any user may write: the user of an image is not this one."""
    with tempfile.TemporaryDirectory(prefix="sparkforge-aot-check-") as folder:
        work = Path(folder)
        work.chmod(0o777)
        yield work


def _read(work: Path, subject: CheckedModules, options: list[str], status: int, log: str) -> ModuleCheck:
    file = work / _OUT
    if not file.is_file():
        why = proc.tail(log.encode()) or f"its script ended with status {status} and said nothing"
        raise CheckFailed("the check of the modules did not come to its end", why=why)
    said = msgspec.structs.asdict(msgspec.json.decode(file.read_bytes(), type=_Said))
    for route in said["routes"]:
        console.say(f"  {route.route}: {'failed: ' + route.failed if route.failed else f'{len(route.asked)} modules'}")
    return ModuleCheck(**said, subject=subject, options=options)
