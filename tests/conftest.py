"""Parts that tests share: a store of their own, a package index of their own, and loud skips."""

from __future__ import annotations

import functools
import hashlib
import http.server
import threading
from pathlib import Path

import pytest

from sparkforge.core.errors import EnvironmentLacks
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store
from sparkforge.inputs import package_index, toolchain


@pytest.fixture
def store(tmp_path) -> Store:
    return Store.open(tmp_path / "store")


class LocalIndex:
    """A package index on loopback that serves a folder and counts what is asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []

    def add(self, package: str, name: str, data: bytes) -> str:
        page = self.folder / "simple" / package
        page.mkdir(parents=True, exist_ok=True)
        (page / name).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        files = sorted(file for file in page.iterdir() if file.name != "index.html")
        rows = (f'<a href="{f.name}#sha256={hashlib.sha256(f.read_bytes()).hexdigest()}">{f.name}</a>' for f in files)
        (page / "index.html").write_text("<html><body>" + "<br>".join(rows) + "</body></html>")
        return digest


@pytest.fixture
def local_index(tmp_path, monkeypatch):
    made = LocalIndex(tmp_path / "index")
    (made.folder / "simple").mkdir(parents=True)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format, *args):  # noqa: A002  the base class names it so
            made.asked.append(f"{self.command} {self.path}")

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(made.folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT"):
        monkeypatch.delenv(name, raising=False)
    package_index.configured.cache_clear()
    yield made
    server.shutdown()
    server.server_close()
    package_index.configured.cache_clear()


@functools.cache
def no_toolchain() -> str:
    """Why the hashed CUDA toolchain cannot be had here; empty where it is in the user's store, or now put there."""
    try:
        toolchain.ready(Store.open(), toolchain.choose(Platform.host()))
    except EnvironmentLacks as lacking:
        return str(lacking)
    return ""


def pytest_runtest_setup(item):
    if item.get_closest_marker("nvcc") and no_toolchain():
        pytest.skip(f"no CUDA toolchain: {no_toolchain()}")
