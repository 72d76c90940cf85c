"""FlashInfer as the intent tests of its patches see it: no GPU, no compiler run, an empty cache."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

import pytest

# FlashInfer makes its cache directory when it is imported, and reads the architectures there.
_workspace = tempfile.mkdtemp(prefix="flashinfer-")
atexit.register(shutil.rmtree, _workspace, ignore_errors=True)
os.environ["FLASHINFER_WORKSPACE_BASE"] = _workspace
os.environ["FLASHINFER_CUDA_ARCH_LIST"] = "12.1f"
for name in ("FLASHINFER_DISABLE_JIT", "FLASHINFER_MOE_TILE", "FLASHINFER_JIT_VERBOSE"):
    os.environ.pop(name, None)


@pytest.fixture(scope="session")
def package() -> Path:
    """The installed `flashinfer` package; found without importing it."""
    spec = importlib.util.find_spec("flashinfer")
    assert spec is not None and spec.origin is not None, "flashinfer is not installed here"
    return Path(spec.origin).parent


@pytest.fixture(scope="session")
def tree(package: Path) -> Path:
    """The source tree that the package was made from: csrc/, include/ and 3rdparty/ lie in it."""
    named = os.environ.get("SPARKFORGE_TREE_FLASHINFER")
    if named is None:
        pytest.skip("SPARKFORGE_TREE_FLASHINFER names no source tree")
    path = Path(named)
    assert (path / "csrc").is_dir(), f"{path} is no FlashInfer source tree"
    return path


@pytest.fixture
def toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build files for CUDA 13.0 can be written, whether or not that compiler is installed here."""
    from flashinfer.jit import cpp_ext
    from packaging.version import Version

    monkeypatch.setattr(cpp_ext, "get_cuda_path", lambda: "/usr/local/cuda")
    monkeypatch.setattr(cpp_ext, "get_cuda_version", lambda: Version("13.0"))
