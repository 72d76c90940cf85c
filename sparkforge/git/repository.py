"""The one door to git: plumbing commands, bytes in and out, an environment that no user setting reaches.

Plain subprocess calls rather than a git library: what we use is a dozen plumbing commands on bytes, which a
library would only spawn for us, after a tenth of a second of imports.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkforge.core import proc
from sparkforge.core.errors import CheckFailed, SparkforgeError

IDENTITY = ("Sparkforge", "sparkforge@localhost")
EPOCH = "0 +0000"

# Everything that could make the same input give another object id, or git wait for a person, is set here.
_SCRUBBED = {
    "LC_ALL": "C",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": "true",
    "GIT_AUTHOR_NAME": IDENTITY[0],
    "GIT_AUTHOR_EMAIL": IDENTITY[1],
    "GIT_AUTHOR_DATE": f"@{EPOCH}",  # without the @ git takes a number this small for no date
    "GIT_COMMITTER_NAME": IDENTITY[0],
    "GIT_COMMITTER_EMAIL": IDENTITY[1],
    "GIT_COMMITTER_DATE": f"@{EPOCH}",
}
_SETTINGS = (
    "core.autocrlf=false",
    "core.fileMode=true",
    "core.symlinks=true",
    "core.attributesFile=" + os.devnull,
    "core.excludesFile=" + os.devnull,
    "core.hooksPath=" + os.devnull,
    "rerere.enabled=false",
    "commit.gpgSign=false",
    "apply.whitespace=nowarn",
    "apply.ignoreWhitespace=no",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "advice.detachedHead=false",
    "safe.directory=*",
)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of a git command: PATH and TMPDIR of the user's, the rest ours."""
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR", "HOME") if name in os.environ}
    return kept | _SCRUBBED | dict(extra or {})


@dataclass(frozen=True)
class Git:
    """Git on one repository.

    Attributes:
        git_dir: the bare repository, or the `.git` directory of a work tree.
        work_tree: the work tree, where there is one.
    """

    git_dir: Path
    work_tree: Path | None = None

    @classmethod
    def init_bare(cls, path: Path) -> Git:
        """Bare repository at `path`, made if it is not there."""
        git = cls(path)
        if not (path / "HEAD").is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            proc.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", path], env=environment())
        return git

    def done(
        self,
        *args: str | Path,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        check: bool = True,
        accept: Sequence[int] = (0,),
        error: type[SparkforgeError] = CheckFailed,
        do: str = "",
    ) -> proc.Done:
        """Run one git command and return how it ended."""
        words: list[str | Path] = ["git", f"--git-dir={self.git_dir}"]
        if self.work_tree is not None:
            words.append(f"--work-tree={self.work_tree}")
        for setting in _SETTINGS:
            words += ["-c", setting]
        return proc.run(
            [*words, *args],
            stdin=stdin,
            env=environment(env),
            cwd=cwd or self.work_tree,
            check=check,
            accept=accept,
            error=error,
            do=do,
        )

    def run(
        self,
        *args: str | Path,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> bytes:
        """Standard output of one git command, as bytes."""
        return self.done(*args, stdin=stdin, env=env, cwd=cwd).out

    def text(
        self,
        *args: str | Path,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> str:
        """Standard output of one git command, as stripped text."""
        return self.run(*args, stdin=stdin, env=env, cwd=cwd).decode().strip()

    def has(self, name: str) -> bool:
        """Whether the repository holds this object."""
        return self.done("cat-file", "-e", name, check=False).code == 0
