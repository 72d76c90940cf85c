"""Pins: an upstream's sdist as one commit of the store's repository."""

from __future__ import annotations

import stat
import tarfile
from dataclasses import dataclass
from pathlib import Path

from sparkforge.core.errors import CheckFailed
from sparkforge.core.store import Store
from sparkforge.git.objects import NewCommit, write_commits
from sparkforge.git.of_store import git_of
from sparkforge.git.repository import Git
from sparkforge.inputs.fetch import fetch
from sparkforge.inputs.recipes import Stack, Upstream


@dataclass(frozen=True)
class Pin:
    """An upstream's source: commit and tree of the sdist's content, the same on every machine."""

    commit: str
    tree: str
    cached: bool


def pin_commit(store: Store, stack: Stack, name: str) -> Pin:
    """The pin of an upstream; fetched, verified and imported if the store does not have it.

    Raises:
        CheckFailed: the sdist does not match its pin, or its archive is unsound.
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
    """The pin, if the repository has it."""
    commit = git.id(f"{ref(name, upstream)}^{{commit}}")
    return Pin(commit, git.text("rev-parse", f"{commit}^{{tree}}"), cached=True) if commit else None


def ref(name: str, upstream: Upstream) -> str:
    """Name of the pin's reference; it has the sdist's hash, so that another file is another pin."""
    return f"refs/pins/{name}/{upstream.release}/{upstream.sdist.sha256[:16]}"


def _import(git: Git, name: str, upstream: Upstream, sdist: Path) -> Pin:
    """Write the archive's files as one commit: no filters, no attributes, one pack."""
    message = (
        f"{name} {upstream.release}\n\nThe content of {upstream.sdist.name}.\n\n"
        f"Sdist-SHA256: {upstream.sdist.sha256}\nUpstream-Git: {upstream.git}\nUpstream-Commit: {upstream.commit}\n"
    )
    (made,) = write_commits(git, "", [NewCommit(message.encode(), _files(sdist))])
    git.run("update-ref", ref(name, upstream), made.commit)
    return Pin(made.commit, made.tree, cached=False)


def _files(sdist: Path) -> dict[str, tuple[str, bytes]]:
    """Mode and content of every file of an archive, by its path below the top folder."""
    found = {}
    try:
        with tarfile.open(sdist) as archive:
            for member in archive:
                path = _inside(sdist, member)
                if path is not None:
                    found[path] = _blob(sdist, archive, member)
    except (tarfile.TarError, EOFError, OSError) as bad:
        raise CheckFailed(f"{sdist.name} is not a sound archive", why=str(bad), do=f"rm {sdist}") from bad
    if not found:
        raise CheckFailed(f"{sdist.name} has no files")
    return found


def _inside(sdist: Path, member: tarfile.TarInfo) -> str | None:
    """Path below the archive's top folder; None for folders."""
    parts = member.name.removeprefix("./").split("/")
    if member.isdir():
        return None
    if len(parts) < 2 or ".." in parts or member.name.startswith("/") or ".git" in parts:  # noqa: PLR2004  top/file
        raise CheckFailed(f"{sdist.name} is not a sound archive", why=f"member {member.name!r} is outside its folder")
    return "/".join(parts[1:])


def _blob(sdist: Path, archive: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[str, bytes]:
    if member.issym():
        return "120000", member.linkname.encode()
    file = archive.extractfile(member)  # follows hard links within the archive
    if file is None:
        raise CheckFailed(f"{sdist.name} is not a sound archive", why=f"member {member.name!r} is not a regular file")
    return ("100755" if member.mode & stat.S_IXUSR else "100644"), file.read()
