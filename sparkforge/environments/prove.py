"""`patches.prove`: each patch's intent tests fail by assertion without the patch and pass with the whole series.

Without a patch go those that depend on it, by trailer, and those whose hunks rest on its lines; the result says which.
An import error, a collection error or an assertion in the package's own code is no proof: a test that cannot run fails
without every patch.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparkforge.core import proc
from sparkforge.core.console import say
from sparkforge.core.errors import BadInput, SparkforgeError
from sparkforge.core.hashing import key_of, sha256_file
from sparkforge.core.store import Store, write_file
from sparkforge.environments import outcomes
from sparkforge.environments.verdict import Outcome, Outcomes, Proof, judged
from sparkforge.patches.mail import Mail
from sparkforge.patches.place import Place
from sparkforge.patches.series import Series, load
from sparkforge.patches.walk import applied, tree

KIND = "prove"
TIMEOUT = 1800.0
PLUGIN = "sparkforge_outcomes"
_GPU = "gpu"
_NAMES_GPU = re.compile(rb"""["'/]gpu["'/]""")


@dataclass(frozen=True)
class ProveEnv:
    """What runs the tests.

    Attributes:
        python: an interpreter with pytest, the plugin and all that the packages need.
        lay: environment variables that make the packages of these trees importable, by upstream.
        identity: what else decides a result (versions of the interpreter and of what is installed in it).
    """

    python: Path
    lay: Callable[[Mapping[str, str]], Mapping[str, str]]
    identity: str = ""


@dataclass(frozen=True)
class _Loaded:
    at: Place
    series: Series
    mails: tuple[Mail, ...]

    def without(self, gone: frozenset[str]) -> tuple[str, tuple[str, ...]]:
        """Tree without these patches, and ids of those that do not apply then and were left out as well."""
        names = [mail.name for mail in self.mails if mail.id not in gone]
        lost: list[str] = []
        while True:
            rest = self.series.only(names)
            trees = applied(self.at.git, self.at.tree, rest)
            if len(trees) == len(rest.patches):
                return (trees[-1] if trees else self.at.tree), tuple(lost)
            name = rest.patches[len(trees)].name
            names.remove(name)
            lost += [mail.id for mail in self.mails if mail.name == name]


def prove(
    places: Iterable[Place], env: ProveEnv, store: Store, *, only: Sequence[str] = (), jobs: int = 1
) -> tuple[Proof, ...]:
    """Prove the patches of these places; all upstreams of a stack belong in it, since the tests import them together.

    Args:
        places: the upstreams.
        env: what runs the tests.
        store: proofs that stand are kept there, under all that they read; only those.
        only: ids or file names; all patches if empty.
        jobs: tests that run at a time.

    Raises:
        BadInput: `only` names no patch, or a series cannot be read.
        CheckFailed: a series does not apply.
    """
    every = [_Loaded(at, series, series.mails(at.git)) for at in places for series in (load(at.folder),)]
    full = {one.at.name: tree(one.at.git, one.at.tree, one.series) for one in every}
    known = {name for one in every for mail in one.mails for name in (mail.id, mail.name)}
    for name in only:
        if name not in known:
            raise BadInput(f"there is no patch {name!r}", why=f"patches: {', '.join(sorted(known))}")
    work = []
    for one in every:
        for mail in one.mails:
            if only and not {mail.id, mail.name} & set(only):
                continue
            trees, left_out = _without(every, mail.id)
            work += [_Work(one.at.root, mail, test, trees, left_out) for test in mail.trailers.tests]
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        waiting = [pool.submit(_proof, store, env, each, full) for each in work]
        return tuple(future.result() for future in waiting)


def _without(every: Sequence[_Loaded], name: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Trees of all upstreams without a patch and what needs it, and what went with it."""
    gone = frozenset({name})
    while True:
        before = gone
        gone |= {mail.id for one in every for mail in one.mails if gone & set(mail.trailers.depends_on)}
        trees: dict[str, str] = {}
        for one in every:
            trees[one.at.name], lost = one.without(gone)
            gone |= set(lost)
        if gone == before:
            return trees, tuple(sorted(gone - {name}))


@dataclass(frozen=True)
class _Work:
    root: Path
    mail: Mail
    test: str
    without: Mapping[str, str]
    left_out: tuple[str, ...]


def _proof(store: Store, env: ProveEnv, work: _Work, full: Mapping[str, str]) -> Proof:
    root, mail, test, trees, left_out = work.root, work.mail, work.test, work.without, work.left_out
    if not (root / test).is_file():
        raise BadInput(f"{mail.name}: {test} is not there", do="write it, or correct the Test: trailer")
    key = key_of(sha256_file(Path(outcomes.__file__)), env.identity, full, trees, test, *_read(root / test))
    kept = store.path(KIND, key) / "proof.json"
    if kept.is_file():
        found = msgspec.json.decode(kept.read_bytes(), type=Proof)
        return msgspec.structs.replace(found, id=mail.id, left_out=left_out, cached=True)
    say(f"  {mail.id}: {test} without the patch and with it ...")
    proof = judged(mail.id, test, left_out, _run(env, root, test, trees), lambda: _run(env, root, test, full))
    say(f"  {mail.id}: {test}: {proof.verdict.value}")
    if proof.proved:
        with store.writing(KIND, key) as folder:
            write_file(folder / "proof.json", msgspec.json.encode(proof))
    return proof


def _read(test: Path) -> list[Path]:
    """Files that a test may read beside itself: all of its folder that are no tests, and conftests above it.

    A folder `gpu` holds scripts for a device, which a proof hides from its tests: it counts only where a file that is
    read, or the test, names it.
    """
    beside = [path for path in sorted(test.parent.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    others = [path for path in beside if not path.name.startswith("test_")]
    above = [folder / "conftest.py" for folder in test.parent.parents if folder.is_relative_to(_top(test))]
    read = [test, *(path for path in others if not _of_gpu(path, test)), *(path for path in above if path.is_file())]
    named = any(_NAMES_GPU.search(path.read_bytes()) for path in read)
    return [*read, *(path for path in others if named and _of_gpu(path, test))]


def _of_gpu(path: Path, test: Path) -> bool:
    return _GPU in path.relative_to(test.parent).parts[:-1]


def _top(test: Path) -> Path:
    """Highest folder whose conftest counts: those above it belong to tests of another Python."""
    return next((folder for folder in test.parents if folder.name == "patches"), test.parent)


def _run(env: ProveEnv, root: Path, test: str, trees: Mapping[str, str]) -> Outcomes:
    """Outcomes of a test file on these trees; a sentence where pytest itself did not come to an end."""
    laid = env.lay(trees)
    with tempfile.TemporaryDirectory(prefix="sparkforge-prove-") as folder:
        told = Path(folder, "outcomes.json")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
        variables = kept | {
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "SPARKFORGE_OUTCOMES": str(told),
            "XDG_CACHE_HOME": str(Path(folder, "cache")),  # what an earlier run left at home proves nothing
            **laid,
        }
        words: list[str | Path] = [env.python, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", root]
        words += ["--confcutdir", _top(root / test), "--import-mode=importlib", "-p", "no:cacheprovider"]
        words += ["-p", PLUGIN, root / test]
        try:
            # In an empty folder: `python -m` puts the working directory on the path.
            done = proc.run(words, cwd=Path(folder), env=variables, check=False, timeout=TIMEOUT)
        except SparkforgeError as late:
            return f"{late.what}; {late.why}"
        if not told.is_file():
            return f"pytest ended with status {done.code}: {proc.tail(done.err or done.out, 5)}"
        found = msgspec.json.decode(told.read_bytes(), type=tuple[Outcome, ...])
        return found or f"pytest found no test: {proc.tail(done.out, 3)}"
