"""Objects of a repository in bulk: one process for any number of blobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparkforge.git.repository import Git


@dataclass(frozen=True)
class Entry:
    """One file of a tree.

    Attributes:
        mode: git's file mode, "100644", "100755", "120000" or "160000".
        blob: object id of its content.
        path: name below the tree's root, with slashes.
    """

    mode: str
    blob: str
    path: str


def entries(git: Git, tree: str) -> dict[str, Entry]:
    """Every file of a tree, by path."""
    found = {}
    for record in git.run("ls-tree", "-r", "-z", "--full-tree", tree).split(b"\0"):
        if record:
            about, _, path = record.partition(b"\t")
            mode, _, blob = about.decode().split(" ")
            name = path.decode("utf-8", "surrogateescape")
            found[name] = Entry(mode, blob, name)
    return found


def contents(git: Git, names: Iterable[str]) -> dict[str, bytes | None]:
    """Content of objects by name (an id, or TREE:PATH); None where there is none or it is no blob."""
    asked = [name for name in dict.fromkeys(names) if "\n" not in name]
    if not asked:
        return {}
    said = git.run(
        "cat-file", "--batch", stdin="".join(f"{name}\n" for name in asked).encode("utf-8", "surrogateescape")
    )
    found: dict[str, bytes | None] = {}
    at = 0
    for name in asked:
        end = said.index(b"\n", at)
        header = said[at:end].rsplit(b" ", 2)
        at = end + 1
        if not header[-1].isdigit():  # "missing" or "ambiguous"
            found[name] = None
            continue
        size = int(header[-1])
        found[name] = said[at : at + size] if header[-2] == b"blob" else None
        at += size + 1
    return found


def changed(git: Git, before: str, after: str) -> dict[str, tuple[Entry | None, Entry | None]]:
    """Paths in which two trees differ, with both sides; no renames are guessed."""
    found: dict[str, tuple[Entry | None, Entry | None]] = {}
    fields = git.run("diff-tree", "-r", "-z", "--no-renames", "--full-index", before, after).split(b"\0")
    for about, path in zip(fields[0::2], fields[1::2], strict=False):
        old_mode, new_mode, old, new, _ = about.decode().lstrip(":").split(" ")
        name = path.decode("utf-8", "surrogateescape")
        found[name] = (
            Entry(old_mode, old, name) if old_mode != "000000" else None,
            Entry(new_mode, new, name) if new_mode != "000000" else None,
        )
    return found
