"""The Python that proves patches: the packages of a virtual environment, with the files of a tree in them.

The environment is never written. It gives compiled modules and dependencies. Its `vllm` may be the CPU build, in which
a few Python files differ from the pin. So every file that both the tree and the installed package have is taken from
the tree: the pin's files once, into the store, and then for each tree the files in which it differs. What only the
package has (compiled modules, generated files) stays, and what it does not ship is not added.

The copies are hard links if the file system can; a file is replaced by another, never written in place.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sparkforge.core import proc
from sparkforge.core.errors import EnvironmentLacks
from sparkforge.core.hashing import key_of
from sparkforge.core.store import Store, remove, write_file
from sparkforge.environments import outcomes
from sparkforge.environments.cuda import Cuda
from sparkforge.environments.prove import PLUGIN, ProveEnv
from sparkforge.git.objects import TreeEntry, changed, contents, entries
from sparkforge.inputs.recipes import Mapping as Folder
from sparkforge.inputs.recipes import Upstream
from sparkforge.overlay.compute import TREE_FILE, alias_files, placed
from sparkforge.overlay.of_stack import stand_ins
from sparkforge.patches.place import Place

KIND = "prove-base"

_FORMAT = 2
# pytest and its imports, all pure Python: taken from our own Python if the environment has none.
_TOOLS = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
_ASK = (
    "import importlib.metadata as m, json, sys, sysconfig;"
    "print(json.dumps([sys.version, sysconfig.get_paths()['purelib'],"
    " sorted(f'{d.name}=={d.version}' for d in m.distributions())]))"
)


@contextmanager
def default(
    store: Store, upstreams: Mapping[str, Upstream], places: Sequence[Place], python: Path, cuda: Cuda | None = None
) -> Iterator[ProveEnv]:
    """Environment for `prove`, made from a virtual environment in which the upstreams' packages are installed.

    Args:
        store: keeps the packages with the pin's files; trees are laid in it and removed at the end.
        upstreams: of the stack; they map a tree to site-packages.
        places: of the same upstreams.
        python: interpreter of the virtual environment.
        cuda: toolchain with which tests may compile.

    Raises:
        EnvironmentLacks: a package, or pytest in our own Python, is not installed.
    """
    venv, cuda = _Venv.asked(python), cuda or Cuda()
    bases = {at.name: _base(store, at, upstreams[at.name].overlay, venv) for at in places}
    above = store.root / "lay"
    above.mkdir(parents=True, exist_ok=True)
    # Locked, so that a sweep of the store skips it while we run; named so that a sweep finds it if we are killed.
    with store.lock(f"lay-{os.getpid()}"):
        work = Path(tempfile.mkdtemp(prefix=f".partial-{os.getpid()}-", dir=above))
        one_at_a_time = threading.Lock()

        def lay(trees: Mapping[str, str]) -> dict[str, str]:
            with one_at_a_time:
                made = {
                    at.name: _laid(work, at, upstreams[at.name].overlay, bases[at.name], trees[at.name])
                    for at in places
                    if at.name in trees
                }
            sites = [str(folder / "site") for folder in made.values()]
            return {
                "PYTHONPATH": os.pathsep.join([*sites, str(work / "tools")]),
                "SPARKFORGE_LAID": os.pathsep.join(sites),
                "CUDA_VISIBLE_DEVICES": "",  # intent is proved on a CPU, on every machine
                **cuda.variables,
                **{f"SPARKFORGE_TREE_{name.upper()}": str(folder / "source") for name, folder in made.items()},
            }

        try:
            _tools(work / "tools", venv)
            _announce(work / "tools", upstreams, venv)
            yield ProveEnv(python, lay, key_of(_FORMAT, venv.said, cuda.identity))
        finally:
            remove(work)


@dataclass(frozen=True)
class _Venv:
    python: Path
    said: str
    site: Path
    installed: frozenset[str]

    @classmethod
    def asked(cls, python: Path) -> _Venv:
        said = proc.run([python, "-c", _ASK], env=_plain(), error=EnvironmentLacks, do="invoke setup").text
        _, site, names = json.loads(said)
        return cls(python, said, Path(site), frozenset(name.partition("==")[0].lower() for name in names))


def _laid(work: Path, at: Place, overlay: Sequence[Folder], base: Path, tree: str) -> Path:
    """Copy of the base with the files of a tree."""
    folder = work / f"{at.name}-{tree}"
    if folder.is_dir():
        return folder
    beside = folder.with_name(f"{folder.name}.new")
    link(base, beside)
    differing = changed(at.git, at.tree, tree)
    data = contents(at.git, (new.blob for _, new in differing.values() if new is not None))
    for path, (_, new) in differing.items():
        content = None if new is None else data[new.blob]
        replace(beside / "source" / path, content, new)
        if (below := placed(overlay, path)) is not None:
            replace(beside / "site" / below, content, new)
    for package in packages(overlay):
        replace(beside / "site" / package / TREE_FILE, f"{tree}\n".encode(), None)
    beside.rename(folder)
    return folder


def packages(overlay: Sequence[Folder]) -> list[str]:
    """Packages in site-packages that the overlay changes."""
    return list(dict.fromkeys(PurePosixPath(one.target).parts[0] for one in overlay))


def _base(store: Store, at: Place, overlay: Sequence[Folder], venv: _Venv) -> Path:
    """The installed packages with the pin's files and their bytecode, and the pin's source beside them."""
    folders = [(one.source, one.target) for one in overlay]
    key = key_of(_FORMAT, venv.said, at.tree, folders)
    if store.has(KIND, key):
        return store.path(KIND, key)
    with store.writing(KIND, key) as folder:
        (folder / "source").mkdir()
        _check_out(at, folder / "source")
        for package in packages(overlay):
            if not (venv.site / package).is_dir():
                why = f"{venv.site / package} does not exist"
                raise EnvironmentLacks(f"{package} is not installed in {venv.python}", why=why, do="invoke setup")
            link(venv.site / package, folder / "site" / package, skip="__pycache__")
        _take_the_pins(at, overlay, folder / "site")
        # Compiled once, here; a file that does not compile is the package's own affair.
        proc.run([venv.python, "-m", "compileall", "-q", "-j", "0", folder / "site"], env=_plain(), check=False)
    return store.path(KIND, key)


def _take_the_pins(at: Place, overlay: Sequence[Folder], site: Path) -> None:
    differing: dict[Path, TreeEntry] = {}
    for entry in entries(at.git, at.tree).values():
        below = placed(overlay, entry.path)
        if below is None or entry.mode == "120000" or not (site / below).is_file():
            continue
        if _blob_id((site / below).read_bytes()) != entry.blob:
            differing[site / below] = entry
    data = contents(at.git, (entry.blob for entry in differing.values()))
    for target, entry in differing.items():
        replace(target, data[entry.blob], entry)


def _blob_id(data: bytes) -> str:
    """Git's id of a content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324  git's own, no secret


def _check_out(at: Place, folder: Path) -> None:
    with at.git.staged(at.tree) as (index, _):
        index.run("-c", "core.bare=false", f"--work-tree={folder}", "checkout-index", "--all", "--quiet", cwd=folder)


def link(source: Path, target: Path, skip: str = "") -> None:
    """Copy a directory by hard links, or by content if the file system cannot link."""
    target.mkdir(parents=True, exist_ok=True)
    with os.scandir(source) as found:
        for one in found:
            if one.name == skip:
                continue
            if one.is_dir(follow_symlinks=False):
                link(Path(one.path), target / one.name, skip)
                continue
            try:
                os.link(one.path, target / one.name, follow_symlinks=False)
            except OSError:
                shutil.copy2(one.path, target / one.name, follow_symlinks=False)


def replace(path: Path, data: bytes | None, entry: TreeEntry | None) -> None:
    """Put a new file in place of the old one, never into it; None removes it."""
    if data is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(data)
    beside.chmod(0o755 if entry is not None and entry.mode == "100755" else 0o644)
    beside.replace(path)


def _tools(folder: Path, venv: _Venv) -> None:
    """Copy the plugin, and from our own Python the parts of pytest that the environment lacks."""
    folder.mkdir()
    shutil.copyfile(outcomes.__file__, folder / f"{PLUGIN}.py")
    for name in sorted(set(_TOOLS) - venv.installed):
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError as lost:
            raise EnvironmentLacks(f"{name} is not installed", do="pip install -e '.[dev]'") from lost
        for file in files:
            if file.suffix == ".py" or file.parts[0].endswith(".dist-info"):
                target = folder / file
                if ".." not in file.parts:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file.locate(), target)


def _announce(folder: Path, upstreams: Mapping[str, Upstream], venv: _Venv) -> None:
    """Announce an upstream by its own name if the environment has another build of it.

    Otherwise vLLM finds no platform and loads the first compiled module, which needs instructions that not every
    processor has: a process that it starts to inspect a model then dies.
    """
    for upstream in upstreams.values():
        for stand_in in stand_ins(upstream):
            if stand_in.distribution in venv.installed and upstream.package not in venv.installed:
                for path, text in alias_files(upstream.package, stand_in).items():
                    write_file(folder / path, text.encode())


def _plain() -> dict[str, str]:
    """Our environment, without variables that would change another Python."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
