"""`patches.edit`: a work tree with one commit a patch, for a person's own git.

It is a repository of its own that borrows the store's objects, so that nothing done in it reaches the store; what it
became comes back through `patches.export` alone.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from sparkforge.core.errors import BadInput
from sparkforge.core.paths import shown
from sparkforge.core.store import remove
from sparkforge.git.repository import Git
from sparkforge.patches.place import Place
from sparkforge.patches.series import Patch, applied, commits, load

AUTHOR = ("Sparkforge maintainers", "maintainers@sparkforge.invalid")
BASE = "refs/sparkforge/base"
START = "refs/sparkforge/start"
FROM = "sparkforge.series"

# Bytes in and out: whatever the upstream's attributes or the user's settings say of line ends and filters.
_ATTRIBUTES = b"* -text !eol !filter !ident !diff !working-tree-encoding\n"


@dataclass(frozen=True)
class WorkTree:
    """A place to edit a series in.

    Attributes:
        path: the work tree.
        base: commit of the pin.
        head: commit of the last patch that applies.
        waiting: patches that do not apply on it, in order; empty when all is well.
    """

    path: Path
    base: str
    head: str
    waiting: tuple[Patch, ...] = ()

    @property
    def git(self) -> Git:
        """Git on it, with our own settings."""
        return Git(self.path / ".git", self.path)


def default(at: Place) -> Path:
    """Where a work tree goes when nobody says."""
    return at.root / "build" / "edit" / at.name


def edit(at: Place, path: Path | None = None) -> WorkTree:
    """Work tree of a series, made or, where nothing was done in it, brought up to date.

    Raises:
        BadInput: something else is there, or work that was not exported.
    """
    path = (path or default(at)).absolute()
    series = load(at.folder)
    count = len(applied(at.git, at.commit, series))
    ready = series.only([patch.name for patch in series.patches[:count]])
    steps = commits(at.git, at.commit, ready)
    head = steps[-1].commit if steps else at.commit
    made = WorkTree(path, at.commit, head, series.patches[count:])
    if path.exists() and any(path.iterdir()):
        _untouched(path)
        remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".partial-{path.name}-", dir=path.parent))
    try:
        _make(at, beside, head, series.sha256)
        if path.exists():
            path.rmdir()
        beside.chmod(0o755)
        beside.rename(path)
    except BaseException:
        remove(beside)
        raise
    return made


def opened(at: Place, path: Path | None = None) -> WorkTree:
    """The work tree that was made before.

    Raises:
        BadInput: there is none, or it stands on another pin.
    """
    path = (path or default(at)).absolute()
    remedy = f"invoke patches.edit {at.name}"
    if not (path / ".git").is_dir():
        raise BadInput(f"there is no work tree at {shown(path)}", do=remedy)
    git = Git(path / ".git", path)
    base = git.id(BASE)
    if not base:
        raise BadInput(f"{shown(path)} is a repository of another kind", why=f"it has no {BASE}", do=remedy)
    if base != at.commit:
        raise BadInput(
            f"{shown(path)} stands on another pin", why=f"its base is {base}, the pin is {at.commit}", do=remedy
        )
    head = git.id("HEAD")
    if not head:
        raise BadInput(f"{shown(path)} has no commit at its head", do="git checkout series")
    return WorkTree(path, base, head)


def uncommitted(tree: WorkTree) -> tuple[str, ...]:
    """Paths with changes that no commit holds, new files included."""
    said = tree.git.run("status", "--porcelain", "--no-renames", "-z", "--untracked-files=all")
    return tuple(record[3:].decode("utf-8", "surrogateescape") for record in said.split(b"\0") if record)


def _untouched(path: Path) -> None:
    tree = WorkTree(path, "", "")
    git = tree.git
    start = git.id(START) if (path / ".git").is_dir() else ""
    if not start:
        raise BadInput(f"{shown(path)} is not empty and no work tree of ours", do="name another place")
    if git.id("HEAD") != start or uncommitted(tree):
        raise BadInput(
            f"{shown(path)} holds work that was not exported",
            why="its commits or files are not as they were made",
            do=f"invoke patches.export, or remove {shown(path)}",
        )


def _make(at: Place, path: Path, head: str, sha256: str) -> None:
    Git(path / ".git").run("init", "--quiet", "--initial-branch=series", path)
    git = Git(path / ".git", path)
    info = path / ".git" / "info"
    (info / "attributes").write_bytes(_ATTRIBUTES)
    (path / ".git" / "objects" / "info" / "alternates").write_text(f"{at.git.git_dir.absolute() / 'objects'}\n")
    for key, value in (("user.name", AUTHOR[0]), ("user.email", AUTHOR[1]), (FROM, sha256)):
        git.run("config", key, value)
    # Set in the repository too: a person's git reads their settings, not ours.
    git.run("config", "core.autocrlf", "false")
    git.run("update-ref", BASE, at.commit)
    git.run("update-ref", START, head)
    git.run("update-ref", "refs/heads/series", head)
    git.run("reset", "--quiet", "--hard", "refs/heads/series")
