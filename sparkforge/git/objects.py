"""Objects in bulk, with one process for any number: files of trees, contents, differences, new commits."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkforge.git.repository import IDENTITY, Git

_NO_COMMIT = "0" * 40
_NO_FILE = "000000"
_EPOCH = "Thu, 1 Jan 1970 00:00:00 +0000"


@dataclass(frozen=True)
class TreeEntry:
    """One file of a tree: git's mode (such as "100644"), id of its content, path below the root."""

    mode: str
    blob: str
    path: str


@dataclass(frozen=True)
class NewCommit:
    """A commit to be written.

    Attributes:
        message: its bytes.
        files: changes by path: a file with a stored blob, the mode and content of a new one, or None to remove it.
        author: `name <email> date`, with the date as in mails; "" for the committer.
    """

    message: bytes
    files: Mapping[str, TreeEntry | tuple[str, bytes] | None]
    author: str = ""


@dataclass(frozen=True)
class Made:
    """A commit that was written, and its tree."""

    commit: str
    tree: str


def entries(git: Git, tree: str) -> dict[str, TreeEntry]:
    """Every file of a tree, by path."""
    return _listed(git.run("ls-tree", "-r", "-z", "--full-tree", tree), blob=2)


def staged(git: Git) -> dict[str, TreeEntry]:
    """Every file of the index, by path."""
    return _listed(git.run("ls-files", "--stage", "-z"), blob=1)


def _listed(said: bytes, *, blob: int) -> dict[str, TreeEntry]:
    found = {}
    for record in said.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        about, _, path = record.partition("\t")
        words = about.split(" ")
        found[path] = TreeEntry(words[0], words[blob], path)
    return found


def contents(git: Git, names: Iterable[str]) -> dict[str, bytes | None]:
    """Content of blobs by name (an id, or TREE:PATH); None if there is no such blob."""
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


def changed(git: Git, before: str, after: str) -> dict[str, tuple[TreeEntry | None, TreeEntry | None]]:
    """Paths in which two trees differ, with both sides; a rename is a removed and an added file."""
    found: dict[str, tuple[TreeEntry | None, TreeEntry | None]] = {}
    said = git.run("diff-tree", "-r", "-z", "--no-renames", "--full-index", before, after)
    fields = said.decode("utf-8", "surrogateescape").split("\0")
    for about, path in zip(fields[0::2], fields[1::2], strict=False):
        old_mode, new_mode, old, new, _ = about.lstrip(":").split(" ")
        found[path] = (
            TreeEntry(old_mode, old, path) if old_mode != _NO_FILE else None,
            TreeEntry(new_mode, new, path) if new_mode != _NO_FILE else None,
        )
    return found


def stage(git: Git, files: Iterable[TreeEntry]) -> None:
    """Put files into the index."""
    lines = "".join(f"{entry.mode} {entry.blob}\t{entry.path}\0" for entry in files)
    git.run("update-index", "-z", "--index-info", stdin=lines.encode("utf-8", "surrogateescape"))


def write_commits(git: Git, start: str, commits: Sequence[NewCommit]) -> tuple[Made, ...]:
    """Write commits, each on the one before, without a reference; the same input gives the same ids everywhere.

    Args:
        git: repository.
        start: parent of the first; or a tree on which it stands without a parent; or "" for an empty tree.
        commits: what to write.
    """
    if not commits:
        return ()
    with tempfile.TemporaryDirectory(prefix="sparkforge-marks-") as folder:
        marks = Path(folder, "marks")
        words = ("--quiet", "--done", "--force", "--date-format=rfc2822", f"--export-marks={marks}")
        git.run("fast-import", *words, stdin=b"".join(_stream(git, start, commits)))
        ids = dict(line.split(" ") for line in marks.read_text().splitlines())
    made = [ids[f":{number}"] for number in range(1, len(commits) + 1)]
    trees = git.text("rev-parse", *(f"{commit}^{{tree}}" for commit in made)).splitlines()
    return tuple(Made(commit, tree) for commit, tree in zip(made, trees, strict=True))


def _stream(git: Git, start: str, commits: Sequence[NewCommit]) -> Iterator[bytes]:
    # Fast-import needs a branch. A name of its own lets runs overlap; at the end it is reset to nothing.
    branch = f"refs/sparkforge/import-{secrets.token_hex(8)}"
    begins = ""
    if start:
        root = git.text("rev-parse", f"{start}^{{tree}}")
        begins = f'M 040000 {root} ""\n' if root == start else f"from {start}\n"
    for number, commit in enumerate(commits, 1):
        author = f"author {commit.author}\n" if commit.author else ""
        yield f"commit {branch}\nmark :{number}\n{author}committer {IDENTITY[0]} <{IDENTITY[1]}> {_EPOCH}\n".encode()
        yield b"data %d\n%b\n" % (len(commit.message), commit.message)
        yield begins.encode() if number == 1 else b""
        for path, file in sorted(commit.files.items(), key=lambda item: item[1] is not None):  # removals first
            name = _quoted(path)
            if file is None:
                yield b"D %b\n" % name
            elif isinstance(file, TreeEntry):
                yield b"M %b %b %b\n" % (file.mode.encode(), file.blob.encode(), name)
            else:
                yield b"M %b inline %b\ndata %d\n%b\n" % (file[0].encode(), name, len(file[1]), file[1])
    yield f"reset {branch}\nfrom {_NO_COMMIT}\n\ndone\n".encode()


def _quoted(path: str) -> bytes:
    """Path in C quotes, for fast-import."""
    raw = path.encode("utf-8", "surrogateescape").replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    return b'"%b"' % raw.replace(b"\n", b"\\n")
