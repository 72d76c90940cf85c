"""Lay wheels into an image stage. Standard library only: it runs where nothing is installed yet.

`install.py tools FOLDER` takes uv out of its wheel. `install.py runtime` makes /opt/venv and installs a lock
into it; `install.py upstream` installs the pinned upstream wheels and leaves nothing but their files, so that
they are a layer of their own over the runtime's. Wheels may be another platform's than this machine's: nothing
of them is run here.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import stub

VENV = Path("/opt/venv")
UV = Path(__file__).resolve().parent / "uv"
CUDA = Path("/opt/sparkforge/cuda")
PYTHON = "/usr/bin/python3"


def tools(folder: Path) -> None:
    """Take the program uv out of the one wheel in a folder."""
    (wheel,) = folder.glob("uv-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
        UV.write_bytes(archive.read(name))
    UV.chmod(0o755)


def runtime(wheels: Path, lock: Path, platform: str, triple: str) -> None:
    """Make the environment and install the lock."""
    _install(wheels, lock, platform)
    _toolkit(triple)


def upstream(wheels: Path, lock: Path, platform: str) -> None:
    """Install the upstream wheels in an environment of their own and remove what is not theirs."""
    _uv("venv", "--python", PYTHON, "--no-project", str(VENV))
    before = [path for path in VENV.rglob("*") if path.is_symlink() or not path.is_dir()]
    _install(wheels, lock, platform, made=True)
    for path in before:
        path.unlink(missing_ok=True)
    for folder, _, _ in os.walk(VENV, topdown=False):
        if not any(Path(folder).iterdir()):
            Path(folder).rmdir()


def _install(wheels: Path, lock: Path, platform: str, *, made: bool = False) -> None:
    if not made:
        _uv("venv", "--python", PYTHON, "--no-project", str(VENV))
    # uv unpacks into its cache and links from there: on the same file system, so that nothing is copied.
    cache = VENV / ".uv-cache"
    _uv(
        *("pip", "install", "--python", str(VENV), "--python-platform", platform),
        *("--no-deps", "--no-build", "--no-index", "--find-links", str(wheels), "--offline"),
        *("--require-hashes", "--requirement", str(lock)),
        *("--compile-bytecode", "--link-mode", "hardlink", "--cache-dir", str(cache)),
    )
    shutil.rmtree(cache)
    (VENV / ".lock").unlink(missing_ok=True)
    for path in VENV.rglob("*"):  # any user of the image reads all of it, whatever mode its wheel gave it
        if not path.is_symlink():
            mode = path.stat().st_mode
            wanted = mode | 0o444 | (0o111 if path.is_dir() or mode & 0o100 else 0)
            if wanted != mode:
                path.chmod(wanted)


def _toolkit(triple: str) -> None:
    """Give the CUDA toolkit of the wheels the shape that builders expect.

    The wheels put everything below nvidia/cu13, with libraries by their run-time names alone. Here is the layout
    of a toolkit (bin, include, nvvm, lib64 with `libX.so`), by links, and a stub of the driver's libcuda.so.
    """
    found = sorted(VENV.glob("lib/python3*/site-packages/nvidia/cu13"))
    if not found or not (found[0] / "bin" / "nvcc").is_file():
        return
    real = found[0]
    (CUDA / "lib64" / "stubs").mkdir(parents=True)
    for name in ("bin", "include", "nvvm"):
        (CUDA / name).symlink_to(real / name)
    (CUDA / "lib").symlink_to("lib64")
    for library in sorted((real / "lib").iterdir()):
        if library.is_dir():
            continue
        (CUDA / "lib64" / library.name).symlink_to(library)
        short = library.name.partition(".so.")[0] + ".so"
        if ".so." in library.name and not (CUDA / "lib64" / short).is_symlink():
            (CUDA / "lib64" / short).symlink_to(library)
    header = (real / "include" / "cuda.h").read_text(errors="replace")
    stub.write(CUDA / "lib64" / "stubs" / "libcuda.so", triple, "libcuda.so.1", stub.functions(header))


def _uv(*words: str) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": "/tmp", "UV_NO_CONFIG": "1", "UV_NO_PROGRESS": "1"}  # noqa: S108  of a build stage
    done = subprocess.run([str(UV), *words], env=environment, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def main() -> None:
    """Parse the words and do one of the three."""
    parser = argparse.ArgumentParser(description="Lay wheels into an image stage.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("tools").add_argument("folder", type=Path)
    for verb in ("runtime", "upstream"):
        one = verbs.add_parser(verb)
        one.add_argument("--wheels", type=Path, required=True)
        one.add_argument("--lock", type=Path, required=True)
        one.add_argument("--platform", required=True, help="as uv takes it: aarch64-manylinux_2_36")
        one.add_argument("--triple", required=True, help="of the image's libraries: aarch64-linux-gnu")
    said = parser.parse_args()
    os.umask(0o022)
    if said.verb == "tools":
        tools(said.folder)
    elif said.verb == "runtime":
        runtime(said.wheels, said.lock, said.platform, said.triple)
    else:
        upstream(said.wheels, said.lock, said.platform)


main()
