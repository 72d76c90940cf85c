"""Any tree as a commit: a folder or an archive, as it lies on disk."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

from sparkforge.core.errors import BadInput
from sparkforge.core.paths import shown
from sparkforge.git.objects import NewCommit, write_commits
from sparkforge.git.repository import Git

# What version control and quilt keep beside the files.
_BESIDE = {".git", ".hg", ".svn", ".bzr", ".pc"}

Member = tuple[str, str, bytes]


def imported(git: Git, place: Path) -> str:
    """Commit of a folder's or an archive's files; no reference is made.

    Args:
        git: repository that takes it.
        place: a folder, or a tar archive; an archive's single top folder is left out.

    Raises:
        BadInput: neither, or no file in it.
    """
    if place.is_dir():
        files = {path: (mode, data) for path, mode, data in _of_folder(place)}
    elif place.is_file():
        files = {path: (mode, data) for path, mode, data in _of_archive(place)}
    else:
        raise BadInput(f"{shown(place)} is not there", do="name a folder or a tar archive")
    if not files:
        raise BadInput(f"{shown(place)} holds no file")
    return write_commits(git, "", [NewCommit(b"a tree\n", files)])[0].commit


def _of_folder(top: Path) -> Iterator[Member]:
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(name for name in folders if name not in _BESIDE)
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in sorted([*files, *links]):
            path = Path(folder, name)
            inside = path.relative_to(top).as_posix()
            if path.is_symlink():
                yield inside, "120000", os.fsencode(path.readlink())
            elif path.is_file():
                mode = "100755" if path.stat().st_mode & stat.S_IXUSR else "100644"
                yield inside, mode, path.read_bytes()


def _of_archive(place: Path) -> Iterator[Member]:
    found: list[Member] = []
    try:
        with tarfile.open(place) as archive:
            for member in archive:
                path = member.name.removeprefix("./")
                if member.isdir() or not (member.isfile() or member.issym() or member.islnk()):
                    continue
                if path.startswith("/") or ".." in path.split("/"):
                    raise BadInput(f"{shown(place)} holds a path outside it", why=member.name)
                if member.issym():
                    found.append((path, "120000", member.linkname.encode()))
                elif (file := archive.extractfile(member)) is not None:
                    found.append((path, "100755" if member.mode & stat.S_IXUSR else "100644", file.read()))
    except (tarfile.TarError, EOFError, OSError) as bad:
        raise BadInput(f"{shown(place)} is no archive that tar can read", why=str(bad)) from bad
    tops = {path.partition("/")[0] for path, _, _ in found}
    single = len(tops) == 1 and all("/" in path for path, _, _ in found)
    for path, mode, data in found:
        inside = path.partition("/")[2] if single else path
        if not _BESIDE & set(inside.split("/")):
            yield inside, mode, data
