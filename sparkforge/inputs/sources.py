"""Pins: an upstream's sdist as one commit of the bare store repository."""

from __future__ import annotations

import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparkforge.core import proc
from sparkforge.core.errors import CheckFailed
from sparkforge.core.store import Store
from sparkforge.git.of_store import git_of
from sparkforge.git.repository import EPOCH, IDENTITY, Git, environment
from sparkforge.inputs.fetch import fetch
from sparkforge.inputs.recipes import Stack, Upstream


@dataclass(frozen=True)
class Pin:
    """An upstream's source as git holds it.

    Attributes:
        commit: of the sdist's content; the same on every machine.
        tree: its tree id.
        cached: it was there already.
    """

    commit: str
    tree: str
    cached: bool


def pin_commit(store: Store, stack: Stack, name: str) -> Pin:
    """The pin of an upstream; fetched, verified and imported when the store does not have it.

    Raises:
        CheckFailed: the sdist is not the pinned content, or its archive is unsound.
        EnvironmentLacks: the index does not answer.
    """
    return imported(store, name, stack.upstreams[name], stack.where(name, "sdist"))


def imported(store: Store, name: str, upstream: Upstream, where: str) -> Pin:
    """An upstream's source as a commit, under this name.

    Args:
        store: where it is kept.
        name: what its reference and its message call it.
        upstream: release and sdist.
        where: what asks for it, named in errors.

    Raises:
        CheckFailed: as `pin_commit`.
        EnvironmentLacks: as `pin_commit`.
    """
    git = git_of(store)
    known = find(git, name, upstream)
    if known is not None:
        return known
    sdist = fetch(store, upstream.sdist, package=upstream.package, where=where)
    with store.lock(f"pin-{name}-{upstream.release}"):
        return find(git, name, upstream) or _import(git, name, upstream, sdist)


def find(git: Git, name: str, upstream: Upstream) -> Pin | None:
    """The pin if the repository holds it."""
    said = git.done("rev-parse", "--verify", "--quiet", f"{ref(name, upstream)}^{{commit}}", accept=(0, 1))
    if said.code:
        return None
    commit = said.text.strip()
    return Pin(commit, git.text("rev-parse", f"{commit}^{{tree}}"), cached=True)


def ref(name: str, upstream: Upstream) -> str:
    """Name of the pin's reference: the release and the sdist's hash, so that another file is another pin."""
    return f"refs/pins/{name}/{upstream.release}/{upstream.sdist.sha256[:16]}"


def _import(git: Git, name: str, upstream: Upstream, sdist: Path) -> Pin:
    """Write the archive's files as one commit through fast-import: no filters, no attributes, one pack."""
    proc.run(
        ["git", f"--git-dir={git.git_dir}", "fast-import", "--quiet", "--done"],
        stdin=b"".join(_stream(name, upstream, sdist)),
        env=environment(),
    )
    made = find(git, name, upstream)
    if made is None:
        raise CheckFailed(f"{sdist.name} was not imported", why=f"{ref(name, upstream)} is not there afterwards")
    return Pin(made.commit, made.tree, cached=False)


def _stream(name: str, upstream: Upstream, sdist: Path) -> Iterator[bytes]:
    message = (
        f"{name} {upstream.release}\n\nThe content of {upstream.sdist.name}.\n\n"
        f"Sdist-SHA256: {upstream.sdist.sha256}\nUpstream-Git: {upstream.git}\nUpstream-Commit: {upstream.commit}\n"
    ).encode()
    yield f"commit {ref(name, upstream)}\n".encode()
    yield f"committer {IDENTITY[0]} <{IDENTITY[1]}> {EPOCH}\n".encode()
    yield b"data %d\n%b\n" % (len(message), message)
    count = 0
    try:
        with tarfile.open(sdist) as archive:
            for member in archive:
                path = _inside(sdist, member)
                if path is None:
                    continue
                mode, data = _blob(sdist, archive, member)
                yield b"M %b inline %b\ndata %d\n%b\n" % (mode, _quoted(path), len(data), data)
                count += 1
    except (tarfile.TarError, EOFError, OSError) as bad:
        raise CheckFailed(f"{sdist.name} is not a sound archive", why=str(bad), do=f"rm {sdist}") from bad
    if not count:
        raise CheckFailed(f"{sdist.name} holds no file")
    yield b"done\n"


def _inside(sdist: Path, member: tarfile.TarInfo) -> str | None:
    """Path below the archive's top folder; None for folders."""
    parts = member.name.removeprefix("./").split("/")
    if member.isdir():
        return None
    if len(parts) < 2 or ".." in parts or member.name.startswith("/") or ".git" in parts:  # noqa: PLR2004  top/file
        raise CheckFailed(f"{sdist.name} is not a sound archive", why=f"member {member.name!r} is outside its folder")
    return "/".join(parts[1:])


def _blob(sdist: Path, archive: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[bytes, bytes]:
    if member.issym():
        return b"120000", member.linkname.encode()
    file = archive.extractfile(member)  # follows hard links within the archive
    if file is None:
        raise CheckFailed(f"{sdist.name} is not a sound archive", why=f"member {member.name!r} is no regular file")
    return (b"100755" if member.mode & stat.S_IXUSR else b"100644"), file.read()


def _quoted(path: str) -> bytes:
    """Path as fast-import reads it: C-style quotes where it would be ambiguous."""
    raw = path.encode()
    if raw.startswith(b'"') or b"\n" in raw or b"\\" in raw:
        return b'"' + raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'
    return raw
