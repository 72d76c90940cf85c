"""`patches.prove`: each patch's intent tests fail by assertion without the patch and pass with the whole series.

Removing a patch also removes its dependents: by trailer, and those whose hunks need its lines. The result names them.
An import error, a collection error or an assertion in the package's own code proves nothing: a test that cannot run
fails without any patch.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from sparkforge.core import proc
from sparkforge.core.console import say
from sparkforge.core.errors import BadInput, SparkforgeError
from sparkforge.core.hashing import key_of, sha256_file
from sparkforge.core.store import Store, write_file
from sparkforge.environments import outcomes
from sparkforge.environments.verdict import PatchProof, PytestOutcome, judged
from sparkforge.patches.mail import Mail
from sparkforge.patches.place import Place
from sparkforge.patches.series import Series, load
from sparkforge.patches.walk import applied, tree

KIND = "prove"
TIMEOUT = 1800.0
PLUGIN = "sparkforge_outcomes"


# Checkout, id of the patch, test file, trees without the patch, other patches that were removed with it.
_Work: TypeAlias = "tuple[Path, str, str, Mapping[str, str], tuple[str, ...]]"


@dataclass(frozen=True)
class ProveEnv:
    """What runs the tests.

    Attributes:
        python: an interpreter with pytest, the plugin and everything that the packages need.
        lay: gives environment variables that make the packages of trees (by upstream) importable.
        identity: everything else that decides a result, such as versions of installed packages.
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
        """Tree without these patches, and ids of others that do not apply without them."""
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
) -> tuple[PatchProof, ...]:
    """Prove the patches of a stack.

    Args:
        places: all upstreams of the stack, since the tests import them together.
        env: runs the tests.
        store: keeps good proofs, under the hash of everything that they read.
        only: ids or file names; all patches if empty.
        jobs: tests to run at a time.

    Raises:
        BadInput: `only` names no patch, or a series cannot be read.
        CheckFailed: a series does not apply.
    """
    every = [_Loaded(at, series, series.mails(at.git)) for at in places for series in (load(at.folder),)]
    full = {one.at.name: tree(one.at.git, one.at.tree, one.series) for one in every}
    ids = {mail.name: mail.id for one in every for mail in one.mails}
    for name in only:
        if name not in {*ids, *ids.values()}:
            raise BadInput(f"there is no patch {name!r}", why=f"patches: {', '.join(sorted(ids.values()))}")
    work: list[_Work] = []
    for one in every:
        for mail in one.mails:
            if only and not {mail.id, mail.name} & set(only):
                continue
            trees, left_out = _without(every, mail.id)
            for test in mail.trailers.tests:
                if not (one.at.root / test).is_file():
                    raise BadInput(f"{mail.name}: {test} does not exist", do="write it, or correct the Test: trailer")
                work.append((one.at.root, mail.id, test, trees, left_out))
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        waiting = [pool.submit(_proof, store, env, full, each) for each in work]
        return tuple(future.result() for future in waiting)


def _without(every: Sequence[_Loaded], name: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Trees of all upstreams without a patch and its dependents, and those dependents."""
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


def _proof(store: Store, env: ProveEnv, full: Mapping[str, str], work: _Work) -> PatchProof:
    root, name, test, trees, left_out = work
    key = key_of(sha256_file(Path(outcomes.__file__)), env.identity, full, trees, test, *_read(root / test))
    kept = store.path(KIND, key) / "proof.json"
    if kept.is_file():
        found = msgspec.json.decode(kept.read_bytes(), type=PatchProof)
        return msgspec.structs.replace(found, id=name, left_out=left_out, cached=True)
    say(f"  {name}: {test} without the patch and with it ...")
    proof = judged(name, test, left_out, _run(env, root, test, trees), lambda: _run(env, root, test, full))
    say(f"  {name}: {test}: {proof.verdict.value}")
    if proof.proved:
        with store.writing(KIND, key) as folder:
            write_file(folder / "proof.json", msgspec.json.encode(proof))
    return proof


def _read(test: Path) -> list[Path]:
    """Files that a test may read besides itself: those of its folder that are not tests, and conftests above it."""
    beside = [path for path in sorted(test.parent.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    above = [folder / "conftest.py" for folder in test.parent.parents if folder.is_relative_to(_top(test))]
    others = [path for path in beside if not path.name.startswith("test_")]
    return [test, *others, *(path for path in above if path.is_file())]


def _top(test: Path) -> Path:
    """Highest folder whose conftest counts; those above it are for tests in our own Python."""
    return next((folder for folder in test.parents if folder.name == "patches"), test.parent)


def _run(env: ProveEnv, root: Path, test: str, trees: Mapping[str, str]) -> tuple[PytestOutcome, ...]:
    """Outcomes of a test file on these trees."""
    laid = env.lay(trees)
    with tempfile.TemporaryDirectory(prefix="sparkforge-prove-") as folder:
        told = Path(folder, "outcomes.json")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
        variables = kept | {
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "SPARKFORGE_OUTCOMES": str(told),
            "XDG_CACHE_HOME": str(Path(folder, "cache")),  # leftovers of earlier runs must not decide
            **laid,
        }
        words: list[str | Path] = [env.python, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", root]
        words += ["--confcutdir", _top(root / test), "--import-mode=importlib", "-p", "no:cacheprovider"]
        words += ["-p", PLUGIN, root / test]
        try:
            # In an empty folder, since `python -m` puts the working directory on the path.
            done = proc.run(words, cwd=Path(folder), env=variables, check=False, timeout=TIMEOUT)
        except SparkforgeError as late:
            return _ended(f"{late.what}; {late.why}")
        if not told.is_file():
            return _ended(f"pytest ended with status {done.code}: {proc.tail(done.err or done.out, 5)}")
        found = msgspec.json.decode(told.read_bytes(), type=tuple[PytestOutcome, ...])
        return found or _ended(f"pytest found no test: {proc.tail(done.out, 3)}")


def _ended(why: str) -> tuple[PytestOutcome, ...]:
    """The outcome of a run in which pytest itself failed."""
    return (PytestOutcome("pytest", "run", "failed", "", assertion=False, why=why),)
