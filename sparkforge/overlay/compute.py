"""An overlay: which files of the published wheel a series replaces, adds or deletes, and with what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    """One file.

    Attributes:
        path: below site-packages.
        op: what happens to it.
        pin_sha256: of the wheel's file; None for one that is added.
        sha256: of the new file; None for one that is deleted.
        mode: permission bits of the new file.
        only: distribution that alone gets it; "" is all.
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
        alias: version under which the upstream's own name is announced beside it, "" for not at all: code that asks
            for the version of `vllm` finds it.
        accepted: files in which it differs from the pin and that a patch may replace all the same, with the
            sha256 that they must have.
    """

    distribution: str
    release: str
    alias: str
    accepted: dict[str, str]


class Manifest(msgspec.Struct, frozen=True):
    """What an overlay is and holds; `apply.py` reads it as plain JSON.

    Attributes:
        format: of this file.
        upstream: name in the stack.
        distribution: name on the index.
        package: import name; its directory gets the tree id.
        release: version that must be installed.
        pin_tree: git tree id of the pin.
        tree: git tree id of the pin with the series.
        entries: the files, by path.
        not_shipped: changed paths of the tree that no wheel carries (tests, documents).
        stand_ins: distributions that may stand for the pin.
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
    """Overlay that stands in a directory.

    Raises:
        CheckFailed: its manifest cannot be read.
    """
    try:
        raw = (path / "manifest.json").read_bytes()
        return Overlay(path, msgspec.json.decode(raw, type=Manifest), hashing.sha256_bytes(raw))
    except (OSError, msgspec.DecodeError) as broken:
        raise CheckFailed("a stored overlay is broken", why=f"{path}: {broken}", do=f"rm -r {path}") from broken


def compute(
    git: Git,
    store: Store,
    *,
    name: str,
    upstream: Upstream,
    pin_tree: str,
    tree: str,
    stand_ins: Sequence[StandIn] = (),
) -> Overlay:
    """Overlay of one upstream: where `tree` differs from `pin_tree`, in the paths of its wheel.

    Args:
        git: repository that holds both trees.
        store: where it is kept, under the hash of all that it is made from.
        name: the upstream's name in the stack.
        upstream: its pin; `overlay` maps folders of the tree to folders of site-packages.
        pin_tree: tree id of the pin.
        tree: tree id with the series applied.
        stand_ins: distributions on which it may be laid besides the pin's own.

    Raises:
        BadInput: the series makes a symbolic link, a submodule or a file with odd mode in a shipped folder.
    """
    key = _key(name, upstream, pin_tree, tree, stand_ins)
    if not store.has(KIND, key):
        with store.writing(KIND, key) as folder:
            entries, not_shipped = list[OverlayEntry](), list[str]()
            for source, (old, new) in changed(git, pin_tree, tree).items():
                path = placed(upstream.overlay, source)
                if path is None:
                    not_shipped.append(source)
                else:
                    entries.append(_entry(git, folder, path, old, new))
            package = _package(upstream.overlay)
            entries.append(_write(folder, f"{package}/{TREE_FILE}", f"{tree}\n".encode(), None, 0o644))
            entries += [entry for one in stand_ins if one.alias for entry in _alias(folder, upstream.package, one)]
            manifest = Manifest(
                format=_FORMAT,
                upstream=name,
                distribution=upstream.package,
                package=package,
                release=upstream.release,
                pin_tree=pin_tree,
                tree=tree,
                entries=sorted(entries, key=lambda entry: entry.path),
                not_shipped=sorted(not_shipped),
                stand_ins=list(stand_ins),
            )
            raw = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
            (folder / "manifest.json").write_bytes(raw + b"\n")
            seal(folder)
    return read(store.path(KIND, key))


def known(
    store: Store, *, name: str, upstream: Upstream, pin_tree: str, tree: str, stand_ins: Sequence[StandIn] = ()
) -> Overlay | None:
    """The overlay if the store has it; arguments as `compute` has them.

    Raises:
        CheckFailed: a file of it is not what was stored.
    """
    path = store.path(KIND, _key(name, upstream, pin_tree, tree, stand_ins))
    return read(path) if sound(path) else None


def _folders(upstream: Upstream) -> list[Mapping]:
    """Mappings, the deepest folder of the tree first."""
    return sorted(upstream.overlay, key=lambda one: len(one.source), reverse=True)


def _key(name: str, upstream: Upstream, pin_tree: str, tree: str, stand_ins: Sequence[StandIn]) -> str:
    parts = msgspec.to_builtins([upstream.package, upstream.release, _folders(upstream), list(stand_ins)])
    return hashing.key_of(_FORMAT, name, parts, pin_tree, tree)


def placed(folders: Sequence[Mapping], path: str) -> str | None:
    """Where a file of the tree stands in site-packages; the deepest folder decides; None for what is not shipped."""
    for folder in sorted(folders, key=lambda one: len(one.source), reverse=True):
        if path.startswith(folder.source):
            return folder.target + path.removeprefix(folder.source)
    return None


def _package(folders: Sequence[Mapping]) -> str:
    """Import name: the folder of the tree that keeps its name in site-packages."""
    for folder in folders:
        if folder.source == folder.target and folder.source.count("/") == 1:
            return folder.source.rstrip("/")
    raise BadInput(
        "an upstream has no package folder",
        why="no folder of `overlay` keeps its name",
        do="add one like {from: vllm/, to: vllm/}",
    )


def _entry(git: Git, folder: Path, path: str, old: TreeEntry | None, new: TreeEntry | None) -> OverlayEntry:
    for side in (old, new):
        if side is not None and side.mode not in _MODES:
            raise BadInput(
                "a series touches something that is no plain file",
                why=f"{side.path} has git mode {side.mode}",
                do="patch plain files only",
            )
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
    """Metadata of the upstream's own name, for a stand-in: texts by path; without RECORD, since nobody installed it."""
    folder = f"{name.replace('-', '_')}-{stand_in.alias}.dist-info"
    said = f"Summary: installed as {stand_in.distribution}\n"
    return {
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {stand_in.alias}\n{said}",
        f"{folder}/WHEEL": "Wheel-Version: 1.0\nGenerator: sparkforge\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }


def _alias(folder: Path, name: str, stand_in: StandIn) -> Iterator[OverlayEntry]:
    for path, text in alias_files(name, stand_in).items():
        yield msgspec.structs.replace(_write(folder, path, text.encode(), None, 0o644), only=stand_in.distribution)
