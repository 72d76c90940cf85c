"""Apply a series in four ways, side by side: our tree, our commits, `git am`, `quilt push -a`.

Each sample starts from nothing: an empty repository that borrows the pin's objects, or a clean work tree of the pin,
made before the clock starts (what that costs is a sample of its own, `checkout`, since `git am` and quilt need one and
we do not). Each sample ends with the tree id that was reached, held against the others. The ways alternate, so that
what else the machine does falls on all of them alike.

    python tools/measure/series_apply.py [--rounds 5] [--patches 200]
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparkforge.core import proc
from sparkforge.core.store import Store
from sparkforge.git.objects import contents, entries
from sparkforge.git.repository import Git, environment
from sparkforge.inputs.recipes import load_stack
from sparkforge.patches import series, walk
from sparkforge.patches.place import Place, places
from sparkforge.patches.series import Series
from sparkforge.patches.walk import formatted
from sparkforge.results.provenance import Run

SEED = 20250901
HERE = Path(__file__).parent
DATE = {"GIT_AUTHOR_DATE": "@1756684800 +0000", "GIT_COMMITTER_DATE": "@0 +0000"}
IN_A_PROCESS = (
    "import sys; from pathlib import Path; from sparkforge.git.repository import Git;"
    " from sparkforge.patches import series, walk;"
    " print(walk.tree(Git(Path(sys.argv[1])), sys.argv[2], series.load(Path(sys.argv[3]))))"
)


def main() -> None:
    """Measure every case and write result.json beside this file."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--rounds", type=int, default=5, help="samples of each way")
    words.add_argument("--patches", type=int, default=200, help="patches of the synthetic series")
    out = Path(__file__).parents[2] / "results/series-apply/result.json"
    words.add_argument("--out", type=Path, default=out)
    given = words.parse_args()
    run = Run(__file__)
    at = places(load_stack(), Store.open())
    run.read(path for one in at for path in one.folder.iterdir())
    result: dict[str, Any] = {
        "what": "applying a patch series to a pin",
        "versions": versions(),
        "unit": "seconds, wall",
        "ways": {
            "tree": "series.load and walk.tree in a running Python: one git apply --cached",
            "tree, new process": "the same with the start of Python and its imports",
            "commits": "series.load and walk.commits in a running Python: a commit for each patch, no work tree",
            "git am": "git am of all patches in a clean work tree",
            "quilt push -a": "in a clean work tree",
            "checkout": "a work tree of the pin, which git am and quilt need first",
        },
        "cases": {},
    }
    with tempfile.TemporaryDirectory(prefix="sparkforge-measure-") as folder:
        work = Path(folder)
        # Copies, so that nobody's export changes a series while it is measured.
        cases = {
            f"{one.name} {one.folder.name}": (one, Path(shutil.copytree(one.folder, work / one.name / one.folder.name)))
            for one in at
        }
        cases[f"synthetic, {given.patches} patches on {at[0].name}"] = (at[0], synthetic(at[0], work, given.patches))
        for name, (place, patches) in cases.items():
            print(name, file=sys.stderr)
            result["cases"][name] = case(place, series.load(patches), work, given.rounds)
    run.write(given.out, result)
    show(result)


def case(place: Place, wanted: Series, work: Path, rounds: int) -> dict[str, Any]:
    """Samples of every way for one series."""
    samples: dict[str, list[float]] = {}
    reached: set[str] = set()
    for _ in range(rounds):
        for name, way in WAYS.items():
            with way(place, wanted, work) as (act, tree_of):
                begun = time.perf_counter()
                act()
                samples.setdefault(name, []).append(round(time.perf_counter() - begun, 5))
                reached.add(tree_of())
    reached.discard(place.tree)  # of the checkout alone
    if len(reached) > 1:
        sys.exit(f"the ways reach different trees: {reached}")
    return {
        "pin": place.tree,
        "tree": next(iter(reached), place.tree),
        "series sha256": wanted.sha256,
        "patches": len(wanted.patches),
        "samples": samples,
        "median": {name: round(statistics.median(values), 4) for name, values in samples.items()},
    }


Prepared = tuple[Callable[[], object], Callable[[], str]]


@contextmanager
def fresh(place: Place, work: Path, *, tree: bool) -> Iterator[Path]:
    """A repository that borrows the pin's objects; with `tree`, a clean work tree of it."""
    path = Path(tempfile.mkdtemp(dir=work))
    git = Git.init_bare(path / ".git")
    (path / ".git/objects/info/alternates").write_text(f"{place.git.git_dir.absolute()}/objects\n")
    try:
        if tree:
            check_out(git, path, place.commit)
        yield path
    finally:
        shutil.rmtree(path)


def check_out(git: Git, path: Path, commit: str) -> None:
    """Fill a work tree."""
    git.run("config", "core.bare", "false")
    git.run("update-ref", "--no-deref", "HEAD", commit, env=DATE)
    Git(git.git_dir, path).run("reset", "--quiet", "--hard", env=DATE)


@contextmanager
def by_tree(place: Place, wanted: Series, work: Path) -> Iterator[Prepared]:
    """The whole series at once, in this process."""
    with fresh(place, work, tree=False) as path:
        said: list[str] = []
        yield (
            lambda: said.append(walk.tree(Git(path / ".git"), place.tree, series.load(wanted.dir))),
            lambda: said[0],
        )


@contextmanager
def by_process(place: Place, wanted: Series, work: Path) -> Iterator[Prepared]:
    """The same, with the start of a Python."""
    with fresh(place, work, tree=False) as path:
        said: list[str] = []
        words = [sys.executable, "-c", IN_A_PROCESS, path / ".git", place.tree, wanted.dir]
        yield (lambda: said.append(proc.run(words).text)), (lambda: said[0])


@contextmanager
def by_commits(place: Place, wanted: Series, work: Path) -> Iterator[Prepared]:
    """A commit for each patch, in this process."""
    with fresh(place, work, tree=False) as path:
        said: list[str] = []
        yield (
            lambda: said.append(walk.commits(Git(path / ".git"), place.commit, series.load(wanted.dir))[-1].tree),
            lambda: said[0],
        )


@contextmanager
def by_am(place: Place, wanted: Series, work: Path) -> Iterator[Prepared]:
    """Git's own, in a work tree."""
    with fresh(place, work, tree=True) as path:
        git = Git(path / ".git", path)
        files = [wanted.dir / patch.name for patch in wanted.patches]
        yield (
            lambda: git.run("am", "--quiet", "--keep-non-patch", *files, env=DATE),
            lambda: git.text("rev-parse", "HEAD^{tree}"),
        )


@contextmanager
def by_quilt(place: Place, wanted: Series, work: Path) -> Iterator[Prepared]:
    """Quilt, in a work tree."""
    with fresh(place, work, tree=True) as path:
        env = environment({"QUILT_PATCHES": str(wanted.dir), "QUILT_PC": ".pc", "QUILTRC": os.devnull})
        git = Git(path / ".git", path)

        def tree_of() -> str:
            (path / ".git/info/exclude").write_text("/.pc/\n")
            git.run("add", "--all", "--force", "--", ":!.pc")
            return git.text("write-tree")

        yield (lambda: proc.run(["quilt", "push", "-a", "-q"], cwd=path, env=env)), tree_of


@contextmanager
def by_checkout(place: Place, _: Series, work: Path) -> Iterator[Prepared]:
    """What the last two need first."""
    with fresh(place, work, tree=False) as path:
        yield (lambda: check_out(Git(path / ".git"), path, place.commit)), (lambda: place.tree)


WAYS = {
    "tree": by_tree,
    "tree, new process": by_process,
    "commits": by_commits,
    "git am": by_am,
    "quilt push -a": by_quilt,
    "checkout": by_checkout,
}


def synthetic(place: Place, work: Path, count: int) -> Path:
    """Folder of a made-up series: each patch changes two places of one Python file, every tenth adds a file."""
    dice = random.Random(SEED)
    git = Git.init_bare(work / "synthetic.git")
    (git.git_dir / "objects/info/alternates").write_text(f"{place.git.git_dir.absolute()}/objects\n")
    names = sorted(path for path in entries(git, place.tree) if path.startswith("vllm/") and path.endswith(".py"))
    chosen = dice.sample(names, min(count, len(names)))
    data = contents(git, (f"{place.tree}:{name}" for name in chosen))
    index = {"GIT_INDEX_FILE": str(work / "synthetic.index")}
    git.run("read-tree", place.tree, env=index)
    head = place.commit
    for number in range(1, count + 1):
        name = chosen[number % len(chosen)]
        lines = (data[f"{place.tree}:{name}"] or b"").split(b"\n")
        for at in sorted(dice.sample(range(len(lines) + 1), min(2, len(lines) + 1)), reverse=True):
            lines.insert(at, b"# patch %d was here" % number)
        data[f"{place.tree}:{name}"] = b"\n".join(lines)
        put(git, index, name, b"\n".join(lines))
        if number % 10 == 0:
            put(git, index, f"vllm/added_{number}.py", b"NUMBER = %d\n" % number)
        tree = git.text("write-tree", env=index)
        text = f"synthetic: change {number}\n\nOne of {count}.\n".encode()
        head = git.text("commit-tree", tree, "-p", head, stdin=text, env=DATE)
    folder = work / "synthetic" / str(count)
    folder.mkdir(parents=True)
    patches = formatted(git, place.commit, head)
    for patch in patches:
        (folder / patch.name).write_bytes(patch.raw)
    (folder / "series").write_text("".join(f"{patch.name}\n" for patch in patches))
    return folder


def put(git: Git, index: dict[str, str], name: str, data: bytes) -> None:
    """One file into the index."""
    blob = git.text("hash-object", "-w", "--stdin", stdin=data)
    git.run("update-index", "--index-info", stdin=f"100644 {blob}\t{name}\n".encode(), env=index)


def versions() -> dict[str, str]:
    """Of the programs that took part."""
    return {
        "python": platform.python_version(),
        "git": proc.run(["git", "--version"]).text,
        "quilt": proc.run(["quilt", "--version"], do="apt-get install quilt").text,
        "patch": proc.run(["patch", "--version"]).text.splitlines()[0],
    }


def show(result: dict[str, Any]) -> None:
    """Medians for people."""
    for name, one in result["cases"].items():
        print(f"{name}: {one['patches']} patches, tree {one['tree'][:12]}")
        for way, value in one["median"].items():
            print(f"  {way:<18} {value:8.3f} s  (of {len(one['samples'][way])})")


if __name__ == "__main__":
    main()
