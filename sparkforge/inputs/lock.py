"""Runtime locks: every distribution of a target at one version with its hashes, for a platform and a Python.

A target's inputs are files in the stack's folder of locks. By hand: TARGET.in (what we add), TARGET.excludes.in
(what we leave out), TARGET.overrides.in, constraints.in, untested.in, each line with its reason. From upstream:
requires-DISTRIBUTION.in (what a pinned wheel requires) and tested.in (the versions with which upstream tested
its release). The latter are constraints: newer versions appear after a release, and untested ones
break it. A lock's first lines hold the hash of its inputs and the hash of its own lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from packaging.utils import canonicalize_name

from sparkforge.core import hashing, proc
from sparkforge.core.console import timed
from sparkforge.core.errors import CheckFailed, EnvironmentLacks
from sparkforge.core.paths import ROOT, shown
from sparkforge.core.platforms import AMD64, ARM64, Platform
from sparkforge.core.store import Store, write_file
from sparkforge.inputs import fetch, lock_inputs
from sparkforge.inputs.package_index import configured
from sparkforge.inputs.recipes import File, Stack, Target

TARGETS: tuple[Target, ...] = ("serve", "cpu")
_TESTED = ("vllm", "requirements/test/cuda.txt")  # the upstream whose own test environment bounds the locks
_HEAD = re.compile(r"\A# (?P<what>[^\n]*)\n# inputs: (?P<inputs>[0-9a-f]{64})\n# lines: (?P<lines>[0-9a-f]{64})\n")


@dataclass(frozen=True)
class Lock:
    """One lock to be made or held against its inputs.

    Attributes:
        target: serve or cpu; tools for what installs wheels on the building machine.
        platform: whose wheels it names.
        python: MAJOR.MINOR.
        glibc: of the base, "2_36".
        path: its file.
    """

    target: Literal["serve", "cpu", "tools"]
    platform: Platform
    python: str
    glibc: str
    path: Path

    @property
    def what(self) -> str:
        """Its first line."""
        return f"{self.target} on {self.platform.oci}, Python {self.python}, glibc {self.glibc.replace('_', '.')}"


def locks(stack: Stack) -> Iterator[Lock]:
    """Every lock of a stack: a target for each platform and Python, and the tools for each platform."""
    for platform in (AMD64, ARM64):
        bases = sorted({(base.python, base.glibc) for base in stack.bases.values()})
        for python, glibc in bases:
            for target in TARGETS:
                yield Lock(target, platform, python, glibc, stack.lock(target, platform, python))
        python, glibc = bases[0]
        yield Lock("tools", platform, python, glibc, ROOT / stack.locks / f"tools-{platform.debian}.txt")


def make(stack: Stack, store: Store, *, upgrade: bool = False) -> list[Path]:
    """Make the locks of a stack anew from their inputs; needs the package index.

    A version in a lock stays unless an input forbids it or `upgrade` is set.

    Returns:
        The files that changed.

    Raises:
        CheckFailed: the inputs admit no solution.
        EnvironmentLacks: the index does not answer, or uv is missing.
    """
    changed = refresh(stack, store)
    for lock in locks(stack):
        with timed(f"lock {lock.what}"):
            text = _compile(stack, lock, upgrade=upgrade)
        if not lock.path.is_file() or lock.path.read_text() != text:
            write_file(lock.path, text.encode())
            changed.append(lock.path)
    return changed


def check(stack: Stack) -> None:
    """Hold the locks of a stack against their inputs, without a network.

    Raises:
        CheckFailed: a lock is missing, damaged or older than an input; names every such file.
    """
    wrong = problems(stack)
    if wrong:
        raise CheckFailed("the locks do not match their inputs", why="\n       ".join(wrong), do="invoke lock")


def problems(stack: Stack) -> list[str]:
    """What is wrong with the locks of a stack; a line for each file."""
    wrong = []
    for path, wanted in _generated(stack).items():
        if not path.is_file() or not path.read_text().startswith(wanted):
            wrong.append(f"{shown(path)}: not from {wanted.split()[2].rstrip(',')}, which the stack pins")
    for lock in locks(stack):
        if not lock.path.is_file():
            wrong.append(f"{shown(lock.path)}: not there")
            continue
        try:
            head = verify(lock.path)
        except CheckFailed as failed:
            wrong.append(f"{shown(lock.path)}: {failed.why}")
            continue
        if head["inputs"] != inputs_key(stack, lock):
            wrong.append(f"{shown(lock.path)}: its inputs changed since it was made")
    return wrong


def verify(path: Path) -> dict[str, str]:
    """First lines of a lock whose other lines are what they say.

    Raises:
        CheckFailed: a lock that was edited or damaged; names both hashes.
    """
    text = path.read_text(errors="replace")
    head = _HEAD.match(text)
    found = hashing.sha256_bytes(text[head.end() :].encode()) if head else ""
    if head is None or found != head["lines"]:
        why = f"its lines have sha256 {found}, its head says {head['lines']}" if head else "it has no head"
        raise CheckFailed(f"{shown(path)} was edited or damaged", why=why, do="invoke lock")
    return head.groupdict()


def inputs_key(stack: Stack, lock: Lock) -> str:
    """Hash of everything that a lock is made from."""
    return hashing.key_of("lock 1", lock.what, {path.name: path for path in _inputs(stack, lock) if path.is_file()})


def refresh(stack: Stack, store: Store) -> list[Path]:
    """Make the inputs that come from upstream anew where the stack pins another file; returns what changed."""
    folder = ROOT / stack.locks
    changed = []
    leave = {str(canonicalize_name(name)) for name in _upstreams(stack)}
    untested = lock_inputs.names((folder / "untested.in").read_text())
    for name, upstream in stack.upstreams.items():
        for target in TARGETS:
            build = upstream.build(target)
            path = folder / f"requires-{build.package}.in"
            file = build.wheels["linux/amd64"]
            if not _is_from(path, file):
                wheel = fetch.fetch(store, file, package=build.package, where=stack.where(name, "wheels"))
                write_file(path, lock_inputs.requires(wheel, file, leave).encode())
                changed.append(path)
    name, member = _TESTED
    upstream, path = stack.upstreams[name], folder / "tested.in"
    pinned = lock_inputs.names(path.read_text()) if path.is_file() else set()
    if not _is_from(path, upstream.sdist) or pinned & untested:
        sdist = fetch.fetch(store, upstream.sdist, package=upstream.package, where=stack.where(name, "sdist"))
        write_file(path, lock_inputs.tested(sdist, upstream.sdist, member, untested).encode())
        changed.append(path)
    return changed


def _upstreams(stack: Stack) -> set[str]:
    """Distributions that are installed from their pinned files and so are in no lock."""
    return {upstream.build(target).package for upstream in stack.upstreams.values() for target in TARGETS}


def _generated(stack: Stack) -> dict[Path, str]:
    """Inputs that come from upstream, each with the first line that it must have."""
    folder = ROOT / stack.locks
    found = {folder / "tested.in": lock_inputs.origin(stack.upstreams[_TESTED[0]].sdist)}
    for upstream in stack.upstreams.values():
        for target in TARGETS:
            build = upstream.build(target)
            found[folder / f"requires-{build.package}.in"] = lock_inputs.origin(build.wheels["linux/amd64"])
    return found


def _is_from(path: Path, file: File) -> bool:
    return path.is_file() and path.read_text().startswith(lock_inputs.origin(file))


def _requires(stack: Stack, lock: Lock) -> list[Path]:
    if lock.target == "tools":
        return []
    builds = [upstream.build(lock.target) for upstream in stack.upstreams.values()]
    return [lock.path.parent / f"requires-{build.package}.in" for build in builds]


def _inputs(stack: Stack, lock: Lock) -> list[Path]:
    own = [f"{lock.target}.in", f"{lock.target}.excludes.in", f"{lock.target}.overrides.in"]
    shared = [] if lock.target == "tools" else ["constraints.in", "tested.in"]
    return [*(lock.path.parent / name for name in own + shared), *_requires(stack, lock)]


def _compile(stack: Stack, lock: Lock, *, upgrade: bool) -> str:
    """Text of a lock: uv's resolution of its inputs, wheels only, from the index that pip is configured with."""
    here = lock.path.parent
    words = [f"{lock.target}.in", *(path.name for path in _requires(stack, lock))]
    for option, name in (("--excludes", f"{lock.target}.excludes.in"), ("--overrides", f"{lock.target}.overrides.in")):
        words += [option, name] if (here / name).is_file() else []
    if lock.target != "tools":
        words += ["--constraints", "constraints.in", "--constraints", "tested.in"]
    words += ["--upgrade"] if upgrade else []
    # The extra indexes and folders of this machine stay out: a lock must be installable where only the index is.
    env = configured().uv_environment()
    for name in ("UV_INDEX", "UV_FIND_LINKS"):
        env.pop(name, None)
    with TemporaryDirectory() as scratch:
        made = Path(scratch) / "lock.txt"
        if lock.path.is_file():
            made.write_bytes(lock.path.read_bytes())  # uv keeps the versions in its output file
        # The index is asked with the words of its own pages alone; a lock names none.
        fixed = ["--only-binary", ":all:", "--generate-hashes", "--no-header", "--no-emit-index-url", "--quiet"]
        target = ["--python-version", lock.python, "--python-platform", lock.platform.uv(lock.glibc)]
        proc.run(
            [_uv(), "pip", "compile", *words, *target, *fixed, "--output-file", made],
            cwd=here,
            env=env,
            do=f"edit an input in {shown(here)}",
        )
        lines = made.read_text()
    head = f"# {lock.what}. Made by `invoke lock`; edit its inputs, the .in files.\n"
    return f"{head}# inputs: {inputs_key(stack, lock)}\n# lines: {hashing.sha256_bytes(lines.encode())}\n{lines}"


def _uv() -> str:
    """The uv that is installed with this project."""
    from uv import find_uv_bin  # noqa: PLC0415  only locking needs it

    try:
        return find_uv_bin()
    except FileNotFoundError as lost:
        raise EnvironmentLacks("uv is not installed", why=str(lost), do="pip install -e .") from lost
