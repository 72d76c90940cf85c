"""A small upstream with everything an overlay meets: its pin in git, its wheel, and venvs that uv made."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparkforge.core.store import Store
from sparkforge.git.of_store import git_of
from sparkforge.git.repository import Git
from sparkforge.inputs.recipes import File, Mapping, Upstream
from sparkforge.overlay import compute

PIN = {
    "demo/__init__.py": b"",
    "demo/a.py": b"VALUE = 'pin'\n",
    "demo/gone.py": b"VALUE = 'gone'\n",
    "demo/sub/b.py": b"VALUE = 'b'\n",
    "csrc/k.cu": b"// pin kernel\n",
    "tests/test_a.py": b"assert True\n",
}
FILE = File("demo-1.0.tar.gz", "0" * 64)
DEMO = Upstream(
    package="demo",
    release="1.0",
    git="https://example.invalid/demo",
    commit="0" * 40,
    sdist=FILE,
    wheels={"linux/amd64": FILE},
    series="patches/demo/1.0",
    overlay=(Mapping("demo/", "demo/"), Mapping("csrc/", "demo/data/csrc/")),
)


def make_tree(git: Git, files: dict[str, bytes], modes: dict[str, str] | None = None) -> str:
    rows = [
        f"{(modes or {}).get(path, '100644')} {git.text('hash-object', '-w', '--stdin', stdin=data)}\t{path}\n"
        for path, data in files.items()
    ]
    index = {"GIT_INDEX_FILE": str(git.git_dir / "test-index")}
    (git.git_dir / "test-index").unlink(missing_ok=True)
    git.run("update-index", "--add", "--index-info", stdin="".join(rows).encode(), env=index)
    return git.text("write-tree", env=index)


def make_wheel(folder: Path, files: dict[str, bytes], *, name: str = "demo", version: str = "1.0") -> Path:
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},{record_hash(data)},{len(data)}\n" for path, data in files.items()]
    files[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return wheel


def record_hash(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def wheel_files(pin: dict[str, bytes]) -> dict[str, bytes]:
    moved = {path.replace("csrc/", "demo/data/csrc/"): data for path, data in pin.items()}
    return {path: data for path, data in moved.items() if path.startswith("demo/")}


def uv(*words: str | Path) -> str:
    program = Path(sys.executable).parent / "uv"
    found = str(program) if program.exists() else shutil.which("uv")
    done = subprocess.run([found, *words, "--offline", "-q"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def install(venv: Path, *wheels: Path) -> None:
    uv("pip", "install", "--python", venv / "bin/python", "--no-index", "--link-mode", "hardlink", *wheels)


def python(venv: Path, code: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([venv / "bin/python", "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@dataclass
class Demo:
    """The pin as git tree, and what makes overlays, wheels and venvs of it."""

    folder: Path
    git: Git
    store: Store
    pin_tree: str

    # Test modules cannot import this file (importlib mode), so what they need hangs here.
    pin = PIN
    upstream = DEMO
    make_tree = staticmethod(make_tree)
    make_wheel = staticmethod(make_wheel)
    wheel_files = staticmethod(wheel_files)
    record_hash = staticmethod(record_hash)
    install = staticmethod(install)
    python = staticmethod(python)
    uv = staticmethod(uv)

    def overlay(self, change: dict[str, bytes | None], *, modes=None, stand_ins=(), upstream=DEMO) -> compute.Overlay:
        files = {path: data for path, data in (PIN | change).items() if data is not None}
        tree = make_tree(self.git, files, modes)
        return compute.compute(
            self.git, self.store, compute.OverlayOf("demo", upstream, self.pin_tree, tree, stand_ins)
        )

    def venv(self, name: str, *wheels: Path) -> Path:
        venv = self.folder / name
        uv("venv", "--python", sys.executable, venv)
        if not wheels and not (self.folder / "wheels").is_dir():
            make_wheel(self.folder / "wheels", wheel_files(PIN))
        install(venv, *(wheels or (self.folder / "wheels").iterdir()))
        return venv

    def site(self, venv: Path) -> Path:
        (site,) = venv.glob("lib/python3.*/site-packages")
        return site


@pytest.fixture
def demo(tmp_path, monkeypatch) -> Demo:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    store = Store.open(tmp_path / "store")
    git = git_of(store)
    return Demo(tmp_path, git, store, make_tree(git, PIN))
