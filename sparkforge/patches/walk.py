"""Applying patch by patch: every tree on the way, or every commit, at the price of the files that are touched.

An index of the touched files alone is what each patch is applied to, and one fast-import writes all trees and commits;
with a whole index, git would read, hash and write thousands of entries for every patch. The objects are the same that
`write-tree` and `commit-tree` make.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sparkforge.git.objects import Entry, entries
from sparkforge.git.repository import IDENTITY, Git
from sparkforge.patches.diff import split
from sparkforge.patches.mail import Mail

_NO_COMMIT = "0" * 40
# Dates come as mails have them, so the committer's is given in that form too.
_WHEN = "Thu, 1 Jan 1970 00:00:00 +0000"
_FORMAT = "rfc2822"

Change = dict[str, Entry | None]


@dataclass(frozen=True)
class Made:
    """A commit that was written, and its tree."""

    commit: str
    tree: str


def changes(git: Git, base: str, patches: Sequence[tuple[str, bytes]]) -> tuple[Change, ...]:
    """What each patch does to the tree before it, up to the first that does not apply.

    Args:
        git: repository; new blobs are written there.
        base: tree or commit that the first is applied to.
        patches: file name and bytes of each, in order.
    """
    found: list[Change] = []
    with tempfile.TemporaryDirectory(prefix="sparkforge-index-") as name:
        folder = Path(name)
        env = {"GIT_INDEX_FILE": str(folder / "index")}
        now = _touched(entries(git, base), patches)
        lines = "".join(f"{entry.mode} {entry.blob}\t{entry.path}\0" for entry in now.values())
        git.run("update-index", "-z", "--index-info", stdin=lines.encode("utf-8", "surrogateescape"), env=env)
        for file, raw in patches:
            (folder / file).write_bytes(raw)
            if git.done("apply", "--cached", folder / file, env=env, cwd=folder, check=False).code != 0:
                break
            before, now = now, _listed(git.run("ls-files", "--stage", "-z", env=env, cwd=folder))
            change: Change = {path: entry for path, entry in now.items() if before.get(path) != entry}
            found.append(change | {path: None for path in before if path not in now})
    return tuple(found)


def _touched(tree: dict[str, Entry], patches: Sequence[tuple[str, bytes]]) -> dict[str, Entry]:
    """Entries of the tree that patches name, and files that stand where a named path has a folder, or the reverse."""
    named = {section.path for name, raw in patches for section in split(name, raw)}
    above = {str(folder) for path in named for folder in PurePosixPath(path).parents}
    below = tuple(f"{path}/" for path in named)
    return {path: entry for path, entry in tree.items() if path in named or path in above or path.startswith(below)}


def _listed(said: bytes) -> dict[str, Entry]:
    found = {}
    for record in said.split(b"\0"):
        if record:
            about, _, path = record.decode("utf-8", "surrogateescape").partition("\t")
            mode, blob, _ = about.split(" ")
            found[path] = Entry(mode, blob, path)
    return found


def written(git: Git, start: str, steps: Sequence[tuple[Change, Mail | None]]) -> tuple[Made, ...]:
    """Commits of these changes, one upon the other; no reference is made.

    Args:
        git: repository.
        start: commit that the first stands on; a tree where only trees are wanted.
        steps: changes, each with the mail whose author, date and message the commit takes.
    """
    if not steps:
        return ()
    root = git.text("rev-parse", f"{start}^{{tree}}")
    # Fast-import wants a branch; it is reset to nothing before the end. A name of its own, so that walks may overlap.
    branch = f"refs/sparkforge/walk-{secrets.token_hex(8)}"
    stream: list[bytes] = []
    for number, (change, mail) in enumerate(steps, 1):
        message = mail.message if mail else b"step\n"
        if mail:
            who = f"{mail.author} <{mail.email}> {mail.date}"
            author = f"author {who}\n".encode()
        else:
            author = b""
        stream.append(f"commit {branch}\nmark :{number}\n".encode() + author)
        stream.append(f"committer {IDENTITY[0]} <{IDENTITY[1]}> {_WHEN}\n".encode())
        stream.append(b"data %d\n%b\n" % (len(message), message))
        if number == 1:
            stream.append(f'M 040000 {root} ""\n'.encode() if root == start else f"from {start}\n".encode())
        stream += [_line(path, entry) for path, entry in sorted(change.items(), key=lambda item: item[1] is not None)]
    stream.append(f"reset {branch}\nfrom {_NO_COMMIT}\n\ndone\n".encode())
    with tempfile.TemporaryDirectory(prefix="sparkforge-marks-") as folder:
        marks = Path(folder, "marks")
        git.run(
            "fast-import",
            "--quiet",
            "--done",
            "--force",
            f"--date-format={_FORMAT}",
            f"--export-marks={marks}",
            stdin=b"".join(stream),
        )
        ids = dict(line.split(" ") for line in marks.read_text().splitlines())
    commits = [ids[f":{number}"] for number in range(1, len(steps) + 1)]
    trees = git.text("rev-parse", *(f"{commit}^{{tree}}" for commit in commits)).splitlines()
    return tuple(Made(commit, tree) for commit, tree in zip(commits, trees, strict=True))


def _line(path: str, entry: Entry | None) -> bytes:
    quoted = (
        path.encode("utf-8", "surrogateescape").replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    )
    return b'D "%b"\n' % quoted if entry is None else f"M {entry.mode} {entry.blob} ".encode() + b'"%b"\n' % quoted
