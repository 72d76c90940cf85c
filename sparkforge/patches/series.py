"""A series: patches in order, applied to a pin's tree without a work tree.

`tree` gives one `git apply --cached` all patches as separate arguments: one stream would let git see a rename and
a file that is made anew as one change, with a wrong tree and status 0. `commits` goes one by one and carries author,
date and message (see `walk`). Same pin and same series are the same tree id and the same commit ids, on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.hashing import sha256_bytes
from sparkforge.core.paths import shown
from sparkforge.git.repository import Git
from sparkforge.patches import stale, traps, walk
from sparkforge.patches.mail import Mail, read

ORDER_FILE = "series"
TREE_FILE = "tree"

_READERS = 4
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+-]*\.patch$")
_ID = re.compile(r"^[0-9a-f]{40}([0-9a-f]{24})?$")


@dataclass(frozen=True)
class Patch:
    """A patch as it lies in its folder.

    Attributes:
        name: file name.
        raw: its bytes.
    """

    name: str
    raw: bytes


@dataclass(frozen=True)
class Series:
    """An ordered list of patches for one pin.

    Attributes:
        upstream: name of the project.
        release: of the pin.
        dir: the folder that they lie in.
        patches: in the order of application.
        recorded: tree id that they lead to, as `tree` in the folder says; None where nothing was recorded.
    """

    upstream: str
    release: str
    dir: Path
    patches: tuple[Patch, ...]
    recorded: str | None = None

    @property
    def sha256(self) -> str:
        """Hash of names, order and contents; comments in the order file do not count."""
        return sha256_bytes(b"".join(f"{patch.name}\0{sha256_bytes(patch.raw)}\n".encode() for patch in self.patches))

    def mails(self, git: Git) -> tuple[Mail, ...]:
        """The patches, read."""
        with ThreadPoolExecutor(_READERS) as pool:  # a process for each, which waits more than it works
            return tuple(pool.map(lambda patch: read(git, patch.name, patch.raw), self.patches))

    def only(self, names: Sequence[str]) -> Series:
        """The same series with these patches alone, in its own order; records no tree."""
        return replace(self, patches=tuple(p for p in self.patches if p.name in set(names)), recorded=None)


@dataclass(frozen=True)
class Step:
    """A patch that was applied and committed.

    Attributes:
        mail: the patch.
        commit: id of its commit.
        tree: tree id after it.
    """

    mail: Mail
    commit: str
    tree: str


def load(folder: Path) -> Series:
    """Series of a folder `<upstream>/<release>`.

    Raises:
        BadInput: no order file, a patch listed twice or not at all, a listed one that is not there.
    """
    order = folder / ORDER_FILE
    if not order.is_file():
        raise BadInput(f"{shown(folder)} holds no series", why=f"{shown(order)} is not there")
    names = listed(order.read_text(encoding="utf-8"))
    there = {path.name for path in folder.glob("*.patch")}
    for name in names:
        if not _NAME.match(name):
            raise BadInput(f"{shown(order)}: {name!r} is no name of a patch file beside it")
        if names.count(name) > 1:
            raise BadInput(f"{shown(order)}: {name} is listed {names.count(name)} times", do="keep one of the lines")
        if name not in there:
            raise BadInput(f"{shown(order)}: {name} is listed and not there", do="remove the line or add the file")
    for name in sorted(there - set(names)):
        raise BadInput(
            f"{shown(folder / name)} is not listed", why=f"no line of {shown(order)} names it", do="add a line for it"
        )
    recorded = None
    if (folder / TREE_FILE).is_file():
        recorded = (folder / TREE_FILE).read_text(encoding="ascii", errors="replace").strip()
        if not _ID.match(recorded):
            raise BadInput(f"{shown(folder / TREE_FILE)} holds no tree id", do="patches.export writes it")
    patches = tuple(Patch(name, (folder / name).read_bytes()) for name in names)
    return Series(folder.parent.name, folder.name, folder, patches, recorded)


def listed(text: str) -> list[str]:
    """File names of an order file; `#` begins a comment."""
    return [name for line in text.splitlines() if (name := line.partition("#")[0].strip())]


def tree(git: Git, base_tree: str, series: Series) -> str:
    """Tree id of a pin's tree with the series applied.

    Args:
        git: repository that holds the pin; new blobs and the tree are written there.
        base_tree: tree (or commit) of the pin.
        series: what to apply.

    Raises:
        BadInput: a patch holds a trap.
        CheckFailed: a patch does not apply; names it, the file and the place.
    """
    traps.refuse([fault for patch in series.patches for fault in traps.faults(patch.name, patch.raw)], _title(series))
    with git.staged(base_tree) as (index, folder):
        for patch in series.patches:  # as files, so that git reads the bytes that were hashed and looked at
            (folder / patch.name).write_bytes(patch.raw)
        files = [folder / patch.name for patch in series.patches]
        if files and index.done("apply", "--cached", *files, check=False).code != 0:
            raise _refused(git, base_tree, series)
        return index.text("write-tree")


def commits(git: Git, base_commit: str, series: Series) -> tuple[Step, ...]:
    """The series as commits upon the pin's, one for each patch.

    Args:
        git: repository that holds the pin; the objects are written there, no reference is.
        base_commit: commit of the pin.
        series: what to apply.

    Raises:
        BadInput: a patch is no mail or holds a trap.
        CheckFailed: a patch does not apply.
    """
    traps.refuse([fault for patch in series.patches for fault in traps.faults(patch.name, patch.raw)], _title(series))
    mails = series.mails(git)
    done = walk.changes(git, base_commit, _pairs(series))
    if len(done) < len(mails):
        raise _refused(git, base_commit, series)
    made = walk.written(git, base_commit, list(zip(done, mails, strict=True)))
    return tuple(Step(mail, one.commit, one.tree) for mail, one in zip(mails, made, strict=True))


def applied(git: Git, base: str, series: Series) -> tuple[str, ...]:
    """Tree ids after each patch, one by one, up to the first that does not apply."""
    start = git.text("rev-parse", f"{base}^{{tree}}")
    done = walk.changes(git, start, _pairs(series))
    return tuple(one.tree for one in walk.written(git, start, [(change, None) for change in done]))


def _pairs(series: Series) -> list[tuple[str, bytes]]:
    return [(patch.name, patch.raw) for patch in series.patches]


def _refused(git: Git, base: str, series: Series) -> CheckFailed:
    """The error for the first patch that does not apply, told by our own comparison."""
    trees = (base, *applied(git, base, series))
    patch = series.patches[len(trees) - 1]
    mail = read(git, patch.name, patch.raw)
    found = stale.faults(git, [(mail, trees[-1])])
    why = "; ".join(f"{fault.what}: {fault.why}" for fault in found) or "git refuses it and every hunk is in its place"
    return CheckFailed(
        f"{_title(series)}: {patch.name} does not apply", why=why, do=f"invoke patches.edit {series.upstream}"
    )


def _title(series: Series) -> str:
    return f"{series.upstream} {series.release}"
