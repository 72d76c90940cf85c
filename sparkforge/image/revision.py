"""The checkout that builds: its commit and that commit's date, for labels."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from pathlib import Path

from sparkforge.git.repository import Git


@dataclass(frozen=True)
class Revision:
    """A checkout's state.

    Attributes:
        commit: full id, with `-dirty` behind it when files differ from it; "" where there is no repository.
        date: of the commit, RFC 3339 in UTC; 1970 where there is none. An image says when its sources were made and
            not when someone built it, so that two builds of one state are one image.
    """

    commit: str
    date: str


def of(root: Path) -> Revision:
    """Revision of a checkout."""
    if not (root / ".git").exists():
        return Revision("", "1970-01-01T00:00:00Z")
    with Git(root / ".git", root).repo() as repo:
        if not repo.head.is_valid():
            return Revision("", "1970-01-01T00:00:00Z")
        commit = repo.head.commit
        date = commit.committed_datetime.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return Revision(f"{commit}-dirty" if repo.is_dirty(submodules=False) else str(commit), date)
