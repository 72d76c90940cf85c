from __future__ import annotations

import io
import tarfile

import msgspec
import pytest

from sparkforge.core.errors import CheckFailed
from sparkforge.core.store import Store
from sparkforge.git.of_store import git_of
from sparkforge.inputs import sources
from sparkforge.inputs.recipes import File, load_stack


def archive(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data, mode in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def stack_with(local_index, data):
    stack = load_stack()
    digest = local_index.add("vllm", "vllm-0.21.0.tar.gz", data)
    vllm = msgspec.structs.replace(stack.upstreams["vllm"], sdist=File("vllm-0.21.0.tar.gz", digest))
    return msgspec.structs.replace(stack, upstreams={"vllm": vllm})


def test_an_sdist_becomes_a_commit_byte_for_byte(store, local_index):
    crlf = b"line\r\nline\r\n"
    data = archive(
        [
            ("vllm-0.21.0/a.py", b"x = 1\n", 0o664),
            ("vllm-0.21.0/.gitattributes", b"* text=auto eol=lf\n", 0o644),
            ("vllm-0.21.0/crlf.txt", crlf, 0o644),
            ("vllm-0.21.0/tool with space.sh", b"#!/bin/sh\n", 0o775),
            ("vllm-0.21.0/.gitignore", b"a.py\n", 0o644),
        ]
    )
    pin = sources.pin_commit(store, stack_with(local_index, data), "vllm")
    git = git_of(store)
    listed = git.text("ls-tree", "-r", pin.tree)
    assert "100755" in listed.splitlines()[-1] or "100755" in listed
    assert git.run("cat-file", "blob", f"{pin.tree}:crlf.txt") == crlf
    assert git.run("cat-file", "blob", f"{pin.tree}:a.py") == b"x = 1\n"
    asked = len(local_index.asked)
    again = sources.pin_commit(store, stack_with(local_index, data), "vllm")
    assert (again.commit, again.tree, again.cached) == (pin.commit, pin.tree, True)
    assert len(local_index.asked) == asked


def test_the_same_sdist_gives_the_same_commit_in_another_store(store, local_index, tmp_path):
    stack = stack_with(local_index, archive([("vllm-0.21.0/a.py", b"x = 1\n", 0o644)]))
    other = type(store).open(tmp_path / "other")
    assert sources.pin_commit(store, stack, "vllm").commit == sources.pin_commit(other, stack, "vllm").commit


@pytest.mark.parametrize("name", ["vllm-0.21.0/../evil", "/etc/evil", "top-level-file", "vllm-0.21.0/.git/config"])
def test_a_member_outside_the_folder_is_refused(store, local_index, name):
    stack = stack_with(local_index, archive([("vllm-0.21.0/a.py", b"", 0o644), (name, b"x", 0o644)]))
    with pytest.raises(CheckFailed, match="not a sound archive"):
        sources.pin_commit(store, stack, "vllm")
    assert sources.find(git_of(store), "vllm", stack.upstreams["vllm"]) is None


def test_a_cut_archive_is_refused(store, local_index):
    stack = stack_with(local_index, archive([("vllm-0.21.0/a.py", b"x" * 100000, 0o644)])[:60])
    with pytest.raises(CheckFailed):
        sources.pin_commit(store, stack, "vllm")


@pytest.mark.online
def test_the_real_pins():
    store = Store.open()
    stack = load_stack()
    assert sources.pin_commit(store, stack, "vllm").tree == "e79df8558d3bebb45e7d66d561f3d9c1904be101"
    assert sources.pin_commit(store, stack, "flashinfer").tree == "a7793691a80115ba86880f2a6469c36edc4de426"
