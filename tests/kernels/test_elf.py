from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparkforge.core.errors import CheckFailed
from sparkforge.core.platforms import Platform
from sparkforge.inspect.elf import read_elf


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elf")
    source = folder / "one.c"
    source.write_text(
        "#include <math.h>\nstatic int inner; int offered(double x) { inner++; return (int)pow(x, x); }\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "one.so", source, "-lm"], check=True)
    return folder / "one.so"


def test_a_library_says_machine_needs_and_exports(library):
    elf = read_elf(library)
    assert elf.machine == Platform.host().elf_machine
    assert "libm.so.6" in elf.needed
    assert "offered" in elf.exports
    assert "inner" not in elf.exports
    assert "pow" not in elf.exports, "that is asked for, not offered"
    assert any(version.startswith("GLIBC_2.") for version in elf.versions)


def test_it_agrees_with_readelf(library):
    said = subprocess.run(["readelf", "-VWd", library], check=True, capture_output=True, text=True).stdout
    elf = read_elf(library)
    assert all(version in said for version in elf.versions)
    assert all(f"[{name}]" in said for name in elf.needed)


def test_an_executable_is_read_as_well():
    assert read_elf(Path(sys.executable)).machine == Platform.host().elf_machine


@pytest.mark.parametrize(
    "damage", [lambda d: b"", lambda d: d[:40], lambda d: b"\x7fELG" + d[4:], lambda d: d[: len(d) // 2]]
)
def test_a_damaged_file_is_one_error(library, tmp_path, damage):
    broken = tmp_path / "broken.so"
    broken.write_bytes(damage(library.read_bytes()))
    with pytest.raises(CheckFailed, match="not a whole ELF file"):
        read_elf(broken)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(CheckFailed, match="gone"):
        read_elf(tmp_path / "gone.so")
