"""An overlay: the files of the published wheel that a series replaces, adds or deletes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from sparkforge.core import hashing
from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.integrity import seal, sound
from sparkforge.core.store import Store
from sparkforge.git.objects import TreeEntry, changed
from sparkforge.git.repository import Git
from sparkforge.inputs.recipes import Mapping, Upstream

KIND = "overlay"
TREE_FILE = "sparkforge_tree.txt"
_FORMAT = 2
_MODES = {"100644": 0o644, "100755": 0o755}


class OverlayEntry(msgspec.Struct, frozen=True):
    """One file: path below site-packages, hashes of the wheel's and the new file, and the new file's mode.

    `only` names the one distribution that gets it; "" is all.
    """

    path: str
    op: Literal["replace", "add", "delete"]
    pin_sha256: str | None
    sha256: str | None
    mode: int
    only: str = ""


class StandIn(msgspec.Struct, frozen=True):
    """Another distribution of the same release on which the overlay may be laid.

    Attributes:
        distribution: its name on the index.
        release: its version.
        alias: version under which it is announced by the upstream's own name too, so that code that asks for the
            version of `vllm` finds one; "" for not at all.
        accepted: files that differ from the pin's but may be replaced, each with the sha256 it must have.
    """

    distribution: str
    release: str
    alias: str
    accepted: dict[str, str]


class Manifest(msgspec.Struct, frozen=True):
    """What an overlay is and holds; `apply.py` reads it as plain JSON.

    Attributes:
        upstream: name in the stack; `distribution`: name on the index; `package`: import name.
        release: version that must be installed.
        pin_tree, tree: git tree ids of the pin, and of the pin with the series.
        not_shipped: changed paths of the tree that are in no wheel (tests, documents).
    """

    format: int
    upstream: str
    distribution: str
    package: str
    release: str
    pin_tree: str
    tree: str
    entries: list[OverlayEntry]
    not_shipped: list[str]
    stand_ins: list[StandIn]


@dataclass(frozen=True)
class Overlay:
    """An overlay in the store: `manifest.json` and, for what is written, `files/<path>`."""

    path: Path
    manifest: Manifest
    digest: str


def read(path: Path) -> Overlay:
    """The overlay in a directory.

    Raises:
        CheckFailed: its manifest cannot be read.
    """
    try:
        raw = (path / "manifest.json").read_bytes()
        return Overlay(path, msgspec.json.decode(raw, type=Manifest), hashing.sha256_bytes(raw))
    except (OSError, msgspec.DecodeError) as broken:
        why, do = f"{path}: {broken}", f"rm -r {path}, then run again"
        raise CheckFailed("a stored overlay is broken", why=why, do=do) from broken


@dataclass(frozen=True)
class OverlayOf:
    """What an overlay is made from: an upstream, its trees, and where else than on its wheel it may be laid."""

    name: str
    upstream: Upstream
    pin_tree: str
    tree: str
    stand_ins: Sequence[StandIn] = ()

    @property
    def key(self) -> str:
        """Where the store keeps it."""
        folders = sorted(self.upstream.overlay, key=lambda one: len(one.source), reverse=True)
        parts = msgspec.to_builtins([self.upstream.package, self.upstream.release, folders, list(self.stand_ins)])
        return hashing.key_of(_FORMAT, self.name, parts, self.pin_tree, self.tree)


def known(store: Store, asked: OverlayOf) -> Overlay | None:
    """The overlay, if the store has it.

    Raises:
        CheckFailed: a stored file is damaged.
    """
    path = store.path(KIND, asked.key)
    return read(path) if sound(path) else None


def compute(git: Git, store: Store, asked: OverlayOf) -> Overlay:
    """The overlay, from the store or computed: where its trees differ, in the paths of its wheel.

    Raises:
        BadInput: the series touches a symbolic link, a submodule or a file with an odd mode.
    """
    if not store.has(KIND, asked.key):
        with store.writing(KIND, asked.key) as folder:
            _compute(git, folder, asked)
            seal(folder)
    return read(store.path(KIND, asked.key))


def _compute(git: Git, folder: Path, asked: OverlayOf) -> None:
    upstream, entries, not_shipped = asked.upstream, list[OverlayEntry](), list[str]()
    for source, (old, new) in changed(git, asked.pin_tree, asked.tree).items():
        path = placed(upstream.overlay, source)
        if path is None:
            not_shipped.append(source)
        else:
            entries.append(_entry(git, folder, path, old, new))
    package = _package(upstream.overlay)
    entries.append(_write(folder, f"{package}/{TREE_FILE}", f"{asked.tree}\n".encode(), None, 0o644))
    for one in asked.stand_ins:
        for path, text in alias_files(upstream.package, one).items() if one.alias else ():
            entry = _write(folder, path, text.encode(), None, 0o644)
            entries.append(msgspec.structs.replace(entry, only=one.distribution))
    manifest = Manifest(
        format=_FORMAT,
        upstream=asked.name,
        distribution=upstream.package,
        package=package,
        release=upstream.release,
        pin_tree=asked.pin_tree,
        tree=asked.tree,
        entries=sorted(entries, key=lambda entry: entry.path),
        not_shipped=sorted(not_shipped),
        stand_ins=list(asked.stand_ins),
    )
    (folder / "manifest.json").write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")


def placed(folders: Sequence[Mapping], path: str) -> str | None:
    """Path in site-packages of a file of the tree, by its deepest mapped folder; None if it is not shipped."""
    for folder in sorted(folders, key=lambda one: len(one.source), reverse=True):
        if path.startswith(folder.source):
            return folder.target + path.removeprefix(folder.source)
    return None


def _package(folders: Sequence[Mapping]) -> str:
    """Import name: the top folder that has the same name in the tree and in site-packages."""
    for folder in folders:
        if folder.source == folder.target and folder.source.count("/") == 1:
            return folder.source.rstrip("/")
    why, do = "no folder of `overlay` keeps its name", "add one like {from: vllm/, to: vllm/}"
    raise BadInput("an upstream has no package folder", why=why, do=do)


def _entry(git: Git, folder: Path, path: str, old: TreeEntry | None, new: TreeEntry | None) -> OverlayEntry:
    for side in (old, new):
        if side is not None and side.mode not in _MODES:
            why = f"{side.path} has git mode {side.mode}"
            raise BadInput("a series touches something that is not a plain file", why=why, do="patch plain files only")
    pin = hashing.sha256_bytes(git.run("cat-file", "blob", old.blob)) if old else None
    if new is None:
        return OverlayEntry(path, "delete", pin, None, 0)
    return _write(folder, path, git.run("cat-file", "blob", new.blob), pin, _MODES[new.mode])


def _write(folder: Path, path: str, content: bytes, pin: str | None, mode: int) -> OverlayEntry:
    file = folder / "files" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return OverlayEntry(path, "replace" if pin else "add", pin, hashing.sha256_bytes(content), mode)


def alias_files(name: str, stand_in: StandIn) -> dict[str, str]:
    """Metadata with the upstream's own name, for a stand-in: texts by path. No RECORD, since nobody installed it."""
    folder = f"{name.replace('-', '_')}-{stand_in.alias}.dist-info"
    said = f"Summary: installed as {stand_in.distribution}\n"
    return {
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {stand_in.alias}\n{said}",
        f"{folder}/WHEEL": "Wheel-Version: 1.0\nGenerator: sparkforge\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
