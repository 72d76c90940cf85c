"""FlashInfer in miniature, its overlay and its wheel, and a store to build it in."""

from __future__ import annotations

import shutil
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sparkforge.aot import modules as build
from sparkforge.aot import tools
from sparkforge.aot.selection import PartModules
from sparkforge.core.arch import parse_archs
from sparkforge.core.errors import EnvironmentLacks
from sparkforge.core.hashing import sha256_bytes
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store
from sparkforge.inputs import toolchain
from sparkforge.overlay.compute import Manifest, Overlay, OverlayEntry

TOY = Path(__file__).with_name("toy")


@dataclass(frozen=True)
class Toy:
    """A checkout of the toy that a test edits, and what a build of it wants."""

    folder: Path
    store: Store
    wheel: Path
    platform: Platform
    options: dict[str, bool]
    parts: tuple[PartModules, ...] = ()

    @property
    def data(self) -> Path:
        return self.folder / "files" / "flashinfer" / "data"

    def edit(self, path: str, text: str) -> None:
        """Give a file of the package other content, as a patch of the series would."""
        file = self.folder / "files" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def wanted(self) -> build.WantedModules:
        files = sorted(file for file in (self.folder / "files").rglob("*") if file.is_file())
        entries = []
        for file in files:
            path = str(file.relative_to(self.folder / "files"))
            was = TOY / path
            pin = sha256_bytes(was.read_bytes()) if was.is_file() else None
            entries.append(OverlayEntry(path, "replace" if pin else "add", pin, sha256_bytes(file.read_bytes()), 0o644))
        tree = sha256_bytes("".join(f"{entry.path}{entry.sha256}" for entry in entries).encode())[:40]
        manifest = Manifest(2, "flashinfer", "toy", "flashinfer", "1.0", "0" * 40, tree, entries, [], [])
        overlay = Overlay(self.folder, manifest, tree)
        return build.WantedModules(overlay, self.wheel, parse_archs("12.1f"), self.platform, self.options, self.parts)

    def build(self, at_once: int = 2) -> build.BuiltModules:
        return build.build(self.store, self.wanted(), lambda: Path(sys.executable), at_once=at_once)

    def on(self, platform: Platform) -> Toy:
        return replace(self, platform=platform)

    def of_parts(self, *parts: PartModules) -> Toy:
        return replace(self, parts=parts)

    def asking(self, **options: bool) -> Toy:
        return replace(self, options=options)


@pytest.fixture(scope="session")
def shared():
    """The user's own store, for the toolchain alone."""
    store = Store.open()
    try:
        tools.ready(store, Platform.host())
    except EnvironmentLacks as lacking:
        pytest.skip(f"nothing was compiled: {lacking}")
    return store


@pytest.fixture
def toy(shared, tmp_path):
    root = tmp_path / "store"
    root.mkdir()
    for kind in ("toolchain", "files"):
        (root / kind).symlink_to(shared.root / kind)
    wheel = tmp_path / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in sorted(TOY.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, file.relative_to(TOY))
    folder = tmp_path / "overlay"
    (folder / "files").mkdir(parents=True)
    return Toy(folder, Store.open(root), wheel, Platform.host(), {})


@pytest.fixture(params=["linux/amd64", "linux/arm64"])
def platform(request):
    platform = Platform.parse(request.param)
    if platform != Platform.host() and not shutil.which(f"{platform.triple}-g++"):
        pytest.skip(f"no {platform.triple}-g++: nothing was compiled for {platform.oci}")
    toolchain.choose(platform)
    return platform


def pytest_collection_modifyitems(items):
    """What builds the toy compiles it with the toolchain of the store."""
    for item in items:
        if {"shared", "toy"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.nvcc)
