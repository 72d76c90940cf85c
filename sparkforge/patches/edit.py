"""`patches.edit` and `patches.new`: a work tree with one commit a patch, for a person's own git.

It is a repository of its own that borrows the store's objects, so nothing done in it reaches the store. Only
`patches.export` takes changes back.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sparkforge.core.errors import BadInput
from sparkforge.core.paths import shown
from sparkforge.core.store import remove
from sparkforge.git.repository import Git
from sparkforge.patches.check import PLACEHOLDER, SUBJECT
from sparkforge.patches.place import Place
from sparkforge.patches.series import Patch, load
from sparkforge.patches.trailers import FEATURE, parse
from sparkforge.patches.walk import applied, commits

AUTHOR = ("Sparkforge maintainers", "maintainers@sparkforge.invalid")
BASE = "refs/sparkforge/base"
START = "refs/sparkforge/start"
FROM = "sparkforge.series"

_LETTER = """{title}

{placeholder}: why this change is needed, and what it does.

Upstream-Status: Pending
Drop-When: contains {path} :: {placeholder}
Test: {test}
Feature: {feature}
"""
# Bytes stay as they are, whatever the upstream's attributes or the user's settings say about line ends and filters.
_ATTRIBUTES = b"* -text !eol !filter !ident !diff !working-tree-encoding\n"


@dataclass(frozen=True)
class WorkTree:
    """A work tree, the commits of the pin and of the last patch that applies, and the patches that wait behind it."""

    path: Path
    base: str
    head: str
    waiting: tuple[Patch, ...] = ()

    @property
    def git(self) -> Git:
        """Git on it, with our own settings."""
        return Git(self.path / ".git", self.path)


def default(at: Place) -> Path:
    """Default place of a work tree."""
    return at.root / "build" / "edit" / at.name


def edit(at: Place, path: Path | None = None) -> WorkTree:
    """Work tree of a series: a new one, or the old one brought up to date if nobody worked in it.

    Raises:
        BadInput: the folder holds something else, or work that was not exported.
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
        lay(at, beside, head, series.sha256)
        if path.exists():
            path.rmdir()
        beside.chmod(0o755)
        beside.rename(path)
    except BaseException:
        remove(beside)
        raise
    return made


def opened(at: Place, path: Path | None = None) -> WorkTree:
    """The work tree that `edit` made before.

    Raises:
        BadInput: there is none, or it is based on another pin.
    """
    path = (path or default(at)).absolute()
    remedy = f"invoke patches.edit {at.name}"
    if not (path / ".git").is_dir():
        raise BadInput(f"there is no work tree at {shown(path)}", do=remedy)
    git = Git(path / ".git", path)
    base = git.id(BASE)
    if not base:
        raise BadInput(f"{shown(path)} was not made by patches.edit", why=f"it has no {BASE}", do=remedy)
    if base != at.commit:
        why = f"its base is {base}, the pin is {at.commit}"
        raise BadInput(f"{shown(path)} is based on another pin", why=why, do=remedy)
    head = git.id("HEAD")
    if not head:
        raise BadInput(f"{shown(path)} has no commit checked out", do="git checkout series")
    return WorkTree(path, base, head)


def uncommitted(tree: WorkTree) -> tuple[str, ...]:
    """Paths with uncommitted changes, new files included."""
    said = tree.git.run("status", "--porcelain", "--no-renames", "-z", "--untracked-files=all")
    return tuple(record[3:].decode("utf-8", "surrogateescape") for record in said.split(b"\0") if record)


def _untouched(path: Path) -> None:
    tree = WorkTree(path, "", "")
    start = tree.git.id(START) if (path / ".git").is_dir() else ""
    if not start:
        do = "name another folder with --path"
        raise BadInput(f"{shown(path)} is not empty and was not made by patches.edit", do=do)
    if tree.git.id("HEAD") != start or uncommitted(tree):
        why, do = "its commits or files changed since it was made", f"invoke patches.export, or remove {shown(path)}"
        raise BadInput(f"{shown(path)} has work that was not exported", why=why, do=do)


def lay(at: Place, path: Path, head: str, sha256: str) -> None:
    """Make a work tree in an empty folder, whose head is based on the pin."""
    Git(path / ".git").run("init", "--quiet", "--initial-branch=series", path)
    git = Git(path / ".git", path)
    info = path / ".git" / "info"
    (info / "attributes").write_bytes(_ATTRIBUTES)
    (path / ".git" / "objects" / "info" / "alternates").write_text(f"{at.git.git_dir.absolute() / 'objects'}\n")
    for key, value in (("user.name", AUTHOR[0]), ("user.email", AUTHOR[1]), (FROM, sha256)):
        git.run("config", key, value)
    # In the repository too, since a person's git does not read our settings.
    git.run("config", "core.autocrlf", "false")
    git.run("update-ref", BASE, at.commit)
    git.run("update-ref", START, head)
    git.run("update-ref", "refs/heads/series", head)
    git.run("reset", "--quiet", "--hard", "refs/heads/series")


@dataclass(frozen=True)
class Begun:
    """A new patch in a work tree, the file that will test it, and what to do next, one line each."""

    commit: str
    paths: tuple[str, ...]
    test: str
    then: tuple[str, ...]


def new(at: Place, *, feature: str, title: str, path: Path | None = None, now: datetime | None = None) -> Begun:
    """Commit what is uncommitted in a work tree as a patch, with a message to fill in.

    Args:
        at: the upstream.
        feature: id of the patch, such as V-03.
        title: subject, `area: what changes`.
        path: the work tree, if it is not where `patches.edit` makes it.
        now: author date, if not the present.

    Raises:
        BadInput: the id is malformed or taken, the title names no area, or nothing is changed.
    """
    if not FEATURE.match(feature):
        raise BadInput(f"{feature!r} is not a patch id", why="an id is a letter, a dash and two digits, such as V-03")
    if not SUBJECT.match(title):
        raise BadInput(f"{title!r} names no area", why="a title is `area: what changes`")
    tree = opened(at, path)
    where = shown(tree.path)
    with tree.git.repo() as repo:
        commits_there = list(repo.iter_commits(f"{tree.base}..{tree.head}"))
        taken = {parse(str(commit.message))[1].feature for commit in commits_there} - {""}
    if feature in taken:
        raise BadInput(f"{feature} is taken", why=f"patches in {where}: {', '.join(sorted(taken))}")
    changed = uncommitted(tree)
    if not changed:
        raise BadInput(f"nothing is changed in {where}", do="edit its files, then run this again")
    words = re.sub(r"[^a-z0-9]+", "_", title.partition(": ")[2].lower()).strip("_")[:40].rstrip("_")
    test = f"tests/patches/{at.name}/test_{feature.replace('-', '').lower()}_{words}.py"
    letter = _LETTER.format(title=title, placeholder=PLACEHOLDER, path=changed[0], test=test, feature=feature)
    date = (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%S%z")
    who = {"GIT_AUTHOR_NAME": AUTHOR[0], "GIT_AUTHOR_EMAIL": AUTHOR[1]}
    who |= {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    tree.git.run("add", "--all")
    tree.git.run("commit", "--quiet", "--file=-", stdin=letter.encode(), env=who)
    return Begun(
        commit=tree.git.id("HEAD"),
        paths=changed,
        test=test,
        then=(
            f"git -C {where} commit --amend   (say why; fill in every {PLACEHOLDER})",
            f"write {test}, which fails without the patch",
            f"invoke patches.export {at.name}",
            f"invoke patches.check && invoke patches.prove --only {feature}",
        ),
    )
