from __future__ import annotations

import pytest

from sparkforge.core.errors import BadInput
from sparkforge.inputs import lock_inputs
from sparkforge.inputs.recipes import File

FILE = File("x-1.0.tar.gz", "a" * 64)


def test_extras_and_upstreams_are_no_requirements(small, tmp_path):
    wheel = tmp_path / "w.whl"
    wheel.write_bytes(
        small.wheel_bytes("x", "1.0", ["a>=1; python_version > '3'", "B_c[d]==2", "e; extra == 'f'", "Vllm"])
    )
    text = lock_inputs.requires(wheel, FILE, {"vllm"})
    assert text.startswith(lock_inputs.origin(FILE))
    assert lock_inputs.names(text) == {"a", "b-c"}


def test_pins_become_constraints_without_local_labels(small, tmp_path):
    sdist = tmp_path / FILE.name
    sdist.write_bytes(
        small.sdist_bytes("x-1.0", {"t.txt": b"torch==2.11.0+cu130\n# n==1\nodd==3 \\\n  --hash=x\nm>=1\n"})
    )
    assert lock_inputs.tested(sdist, FILE, "t.txt", {"odd"}).splitlines()[2:] == ["torch==2.11.0"]


@pytest.mark.parametrize(
    "work", [lambda p: lock_inputs.requires(p, FILE, set()), lambda p: lock_inputs.tested(p, FILE, "t", set())]
)
def test_what_is_no_archive_is_named(tmp_path, work):
    broken = tmp_path / FILE.name
    broken.write_bytes(b"no")
    with pytest.raises(BadInput, match=r"x-1\.0\.tar\.gz"):
        work(broken)


def test_an_sdist_without_the_member_is_named(small, tmp_path):
    sdist = tmp_path / FILE.name
    sdist.write_bytes(small.sdist_bytes("x-1.0", {"other": b""}))
    with pytest.raises(BadInput, match="tested versions"):
        lock_inputs.tested(sdist, FILE, "t.txt", set())
