from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = Path(__file__).resolve().parent.parent


def load_module(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def load():
    """A module of this folder by its name; the tests are imported without a package around them."""
    return lambda name: load_module(name, KERNELS / "tests" / f"{name}.py")


@pytest.fixture(scope="session")
def reference(load):
    return load("mxfp4_reference")


def build_host(folder, *flags, source="mxfp4_host"):
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler: the numerics were NOT tested")
    library = folder / f"{source}.so"
    path = KERNELS / "tests" / "host" / f"{source}.cc"
    warnings = ["-Wall", "-Wextra", "-Werror"]
    command = [compiler, "-std=c++17", "-O2", "-fPIC", "-shared", *warnings, *flags, f"-I{KERNELS}/include"]
    subprocess.run([*command, "-o", library, path], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="session")
def host(tmp_path_factory):
    return build_host(tmp_path_factory.mktemp("host"))


@pytest.fixture(scope="session")
def mma_host(tmp_path_factory):
    return build_host(tmp_path_factory.mktemp("mma"), source="mma_host")


@pytest.fixture(scope="session")
def layouts_host(tmp_path_factory):
    return build_host(tmp_path_factory.mktemp("layouts"), source="layouts_host")
