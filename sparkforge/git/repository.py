"""The one door to git: bytes in and out, in an environment that no setting of the user's reaches.

GitPython runs the commands; it is imported when a repository is first used (a tenth of a second). A failed command is
one of our errors, with the command and the last lines of its output.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import PIPE
from types import ModuleType
from typing import TYPE_CHECKING, TypedDict, Unpack

from sparkforge.core import proc

if TYPE_CHECKING:
    from git import Repo

IDENTITY = ("Sparkforge", "sparkforge@localhost")
EPOCH = "@0 +0000"  # without the @ git takes so small a number for no date

_SETTINGS = {
    "core.autocrlf": "false",
    "core.fileMode": "true",
    "core.symlinks": "true",
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "core.hooksPath": os.devnull,
    "rerere.enabled": "false",
    "commit.gpgSign": "false",
    "apply.whitespace": "nowarn",
    "apply.ignoreWhitespace": "no",
    "diff.noprefix": "false",
    "diff.mnemonicPrefix": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "advice.detachedHead": "false",
    "safe.directory": "*",
}
# Everything that could change an object id, or make git wait for a person, is set here.
_ENVIRONMENT = {
    "LC_ALL": "C",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": "true",
    "GIT_AUTHOR_NAME": IDENTITY[0],
    "GIT_AUTHOR_EMAIL": IDENTITY[1],
    "GIT_AUTHOR_DATE": EPOCH,
    "GIT_COMMITTER_NAME": IDENTITY[0],
    "GIT_COMMITTER_EMAIL": IDENTITY[1],
    "GIT_COMMITTER_DATE": EPOCH,
    "GIT_CONFIG_COUNT": str(len(_SETTINGS)),
    **{f"GIT_CONFIG_KEY_{number}": key for number, key in enumerate(_SETTINGS)},
    **{f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(_SETTINGS.values())},
}


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of a git command: the user's without any variable of git's, then ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | _ENVIRONMENT | dict(extra or {})


class Options(TypedDict, total=False):
    """What a command takes besides its words, as `Git.done` has it."""

    stdin: bytes | None
    env: Mapping[str, str] | None
    cwd: Path | None


@dataclass(frozen=True)
class Git:
    """Git on a bare repository, or on a work tree and its `.git`; `index` is a file used instead of the usual index."""

    git_dir: Path
    work_tree: Path | None = None
    index: Path | None = None

    @classmethod
    def init_bare(cls, path: Path) -> Git:
        """Bare repository at `path`, created if needed."""
        git = cls(path)
        if not (path / "HEAD").is_file():
            path.mkdir(parents=True, exist_ok=True)
            git.run("init", "--quiet", "--bare", "--initial-branch=main", path)
        return git

    def repo(self) -> Repo:
        """GitPython's repository, for commits; use it as a context manager, which ends its processes."""
        made: Repo = _gitpython().Repo(self.work_tree or self.git_dir)
        made.git.update_environment(**_ENVIRONMENT)
        return made

    @contextmanager
    def staged(self, tree: str = "") -> Iterator[tuple[Git, Path]]:
        """The same repository with a temporary index (of a tree, or empty), and the folder of that index."""
        with tempfile.TemporaryDirectory(prefix="sparkforge-index-") as folder:
            git = replace(self, index=Path(folder, "index"))
            if tree:
                git.run("read-tree", tree)
            yield git, Path(folder)

    def done(
        self,
        *args: str | Path,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        check: bool = True,
        accept: Sequence[int] = (0,),
    ) -> proc.Done:
        """Run one git command; arguments, result and errors are those of `proc.run`."""
        words = ["git", f"--git-dir={self.git_dir}"]
        words += [f"--work-tree={self.work_tree}"] if self.work_tree else []
        words += map(str, args)
        variables = {**_ENVIRONMENT, **({"GIT_INDEX_FILE": str(self.index)} if self.index else {}), **(env or {})}
        folder = cwd or self.work_tree or (self.index.parent if self.index else None)
        git = _gitpython()
        begun = proc.announced(words)
        try:
            child = git.Git(folder).execute(words, istream=PIPE if stdin else None, as_process=True, env=variables)
            out, err = child.communicate(stdin)
        except git.GitCommandNotFound as lost:
            raise proc.not_found(words, folder) from lost
        done = proc.Done(tuple(words), child.returncode, out, err, time.monotonic() - begun)
        return done.demand(accept) if check else done

    def run(self, *args: str | Path, **options: Unpack[Options]) -> bytes:
        """Standard output of one git command, as bytes."""
        return self.done(*args, **options).out

    def text(self, *args: str | Path, **options: Unpack[Options]) -> str:
        """Standard output of one git command, as stripped text."""
        return self.run(*args, **options).decode().strip()

    def id(self, name: str) -> str:
        """Object id of a name such as `HEAD` or `TREE:PATH`; "" if it names nothing."""
        return self.done("rev-parse", "--verify", "--quiet", name, check=False).text

    def has(self, name: str) -> bool:
        """Whether the repository has this object."""
        return self.done("cat-file", "-e", name, check=False).code == 0


def _gitpython() -> ModuleType:
    """GitPython, after git's variables were removed from this process: GitPython would pass them on."""
    for name in [name for name in os.environ if name.startswith("GIT_") and not name.startswith("GIT_PYTHON_")]:
        os.environ.pop(name, None)
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # we report a missing git, when it is needed
    import git  # noqa: PLC0415  a tenth of a second

    return git
