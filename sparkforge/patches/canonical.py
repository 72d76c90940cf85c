"""Canonical bytes of a patch: what one fixed `git format-patch` makes of a commit."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sparkforge.git.repository import Git
from sparkforge.patches.series import Patch

FLAGS = (
    "--zero-commit",  # the id of a commit says nothing about the patch
    "--no-signature",  # nor does git's version
    "--full-index",  # whole blob ids: equal content found by id, whatever else a repository holds
    "--no-renames",  # a rename hides what is patched from the next upstream
    "--no-stat",
    "--no-numbered",  # "3/7" would change every patch when one is added
    "--diff-algorithm=myers",
    "-U3",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--binary",  # binary content with its data; text comes out the same
)


def formatted(git: Git, base: str, head: str) -> tuple[Patch, ...]:
    """Patches of the commits after `base` up to `head`, with the names and bytes that an export gives them.

    Args:
        git: a bare repository, so that no attributes of the tree have a say.
        base: commit of the pin.
        head: last commit.
    """
    if base == head:
        return ()
    with tempfile.TemporaryDirectory(prefix="sparkforge-format-") as folder:
        said = git.text(
            "-c",
            "core.bare=true",
            "format-patch",
            *FLAGS,
            "--output-directory",
            folder,
            f"{base}..{head}",
            cwd=Path(folder),
        )
        return tuple(Patch(Path(line).name, Path(line).read_bytes()) for line in said.splitlines())
