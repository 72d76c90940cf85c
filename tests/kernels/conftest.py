from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sparkforge.core.errors import EnvironmentLacks
from sparkforge.core.paths import KERNELS
from sparkforge.core.platforms import AMD64, ARM64, Platform
from sparkforge.core.store import Store
from sparkforge.inputs.kernel_list import load_kernels
from sparkforge.inputs.toolchain import choose, inspector, ready

PROBE = KERNELS / "tests" / "probe"


@pytest.fixture(scope="session")
def store():
    """The user's own store: its toolchain is fetched once; every test's kernels have keys of their own."""
    return Store.open()


@pytest.fixture(scope="session")
def tools(store):
    try:
        ready(store, choose(Platform.host()))
        return inspector(store)
    except EnvironmentLacks as lacking:
        pytest.skip(f"the kernels were NOT compiled: {lacking}")


@pytest.fixture(params=["linux/amd64", "linux/arm64"])
def platform(request):
    platform = Platform.parse(request.param)
    if platform != Platform.host() and not shutil.which(f"{platform.triple}-g++"):
        pytest.skip(f"no {platform.triple}-g++: nothing was compiled for {platform.oci}")
    return platform


@pytest.fixture
def fresh(store, tmp_path):
    """An empty store that shares the toolchain and the downloads."""
    for kind in ("toolchain", "files"):
        if (store.root / kind).is_dir():
            (tmp_path / "store").mkdir(exist_ok=True)
            (tmp_path / "store" / kind).symlink_to(store.root / kind)
    return Store.open(tmp_path / "store")


@pytest.fixture
def unlinked(fresh, store):
    """An empty store that shares compiled objects as well: a build in it only links."""
    (store.root / "kernel-objects").mkdir(exist_ok=True)
    (fresh.root / "kernel-objects").symlink_to(store.root / "kernel-objects")
    return fresh


@pytest.fixture
def probe():
    return load_kernels(root=PROBE)


@pytest.fixture
def own(tmp_path) -> Path:
    """A copy of our kernels to edit."""
    copy = tmp_path / "elsewhere" / "kernels"
    shutil.copytree(KERNELS, copy, ignore=shutil.ignore_patterns("tests", "bench", "__pycache__"))
    return copy


def other(platform):
    return ARM64 if platform == AMD64 else AMD64
