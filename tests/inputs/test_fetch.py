from __future__ import annotations

import pytest

from sparkforge.core.errors import BadInput, CheckFailed, EnvironmentLacks
from sparkforge.core.hashing import sha256_bytes
from sparkforge.core.platforms import AMD64, ARM64
from sparkforge.inputs import fetch, wheelhouse
from sparkforge.inputs.recipes import File


def test_a_file_comes_once_and_then_from_the_store(store, local_index):
    file = File("thing-1.tar.gz", local_index.add("thing", "thing-1.tar.gz", b"content"))
    path = fetch.fetch(store, file, package="thing")
    assert path.read_bytes() == b"content"
    asked = len(local_index.asked)
    assert fetch.fetch(store, file, package="thing") == path
    assert len(local_index.asked) == asked


def test_other_content_from_the_index_is_refused_and_not_kept(store, local_index):
    local_index.add("thing", "thing-1.tar.gz", b"content")
    file = File("thing-1.tar.gz", sha256_bytes(b"another"))
    with pytest.raises(CheckFailed) as caught:
        fetch.fetch(store, file, package="thing", where="recipe line 7")
    assert all(part in str(caught.value) for part in ("thing-1.tar.gz", "recipe line 7", file.sha256))
    assert not [path for path in store.root.rglob("*") if path.is_file() and "locks" not in path.parts]


def test_one_changed_byte_in_the_store_is_found(store, local_index):
    file = File("thing-1.tar.gz", local_index.add("thing", "thing-1.tar.gz", b"content"))
    path = fetch.fetch(store, file, package="thing")
    path.write_bytes(b"cOntent")
    with pytest.raises(CheckFailed) as caught:
        fetch.fetch(store, file, package="thing", where="recipe line 7")
    assert all(
        part in str(caught.value) for part in (str(path), sha256_bytes(b"cOntent"), file.sha256, "recipe line 7")
    )


def test_a_download_continues_where_it_was_killed(store, local_index, monkeypatch):
    data = bytes(range(256)) * 100
    file = File("thing-1.tar.gz", local_index.add("thing", "thing-1.tar.gz", data))
    final = fetch.path_of(store, file)
    final.parent.mkdir(parents=True)
    # The test's server knows no ranges, so it answers with the whole file: the part must not be doubled.
    final.with_name(f".partial-{file.name}").write_bytes(data[:1000])
    assert fetch.fetch(store, file, package="thing").read_bytes() == data
    assert [path.name for path in final.parent.glob(".partial*")] == []


def test_a_name_that_the_index_does_not_have(store, local_index):
    local_index.add("thing", "thing-1.tar.gz", b"content")
    with pytest.raises(EnvironmentLacks, match="has no thing-2"):
        fetch.fetch(store, File("thing-2.tar.gz", "0" * 64), package="thing")


def lock_of(tmp_path, text):
    path = tmp_path / "lock.txt"
    path.write_text(text)
    return path


def test_the_wheelhouse_takes_the_best_file_that_the_lock_allows(store, local_index, tmp_path):
    old = local_index.add("thing", "thing-1-cp311-cp311-manylinux_2_17_x86_64.whl", b"old glibc")
    new = local_index.add("thing", "thing-1-cp311-cp311-manylinux_2_28_x86_64.whl", b"newer glibc")
    arm = local_index.add("thing", "thing-1-cp311-cp311-manylinux_2_28_aarch64.whl", b"arm")
    local_index.add("thing", "thing-1-1-cp311-cp311-manylinux_2_28_x86_64.whl", b"not in the lock")
    local_index.add("thing", "thing-1-cp312-cp312-manylinux_2_28_x86_64.whl", b"other python")
    lock = lock_of(
        tmp_path, f"thing==1 \\\n    --hash=sha256:{old} \\\n    --hash=sha256:{new} \\\n    --hash=sha256:{arm}\n"
    )
    amd = wheelhouse.resolve(store, lock, AMD64, "3.11", "2_36")
    assert [item.file.sha256 for item in amd.wanted] == [new]
    assert [item.file.sha256 for item in wheelhouse.resolve(store, lock, AMD64, "3.11", "2_17").wanted] == [old]
    assert [item.file.sha256 for item in wheelhouse.resolve(store, lock, ARM64, "3.11", "2_36").wanted] == [arm]
    asked = len(local_index.asked)
    assert wheelhouse.resolve(store, lock, AMD64, "3.11", "2_36") == amd
    assert len(local_index.asked) == asked


def test_a_lock_without_a_wheel_for_the_platform(store, local_index, tmp_path):
    digest = local_index.add("thing", "thing-1-cp311-cp311-manylinux_2_28_aarch64.whl", b"arm")
    lock = lock_of(tmp_path, f"thing==1 --hash=sha256:{digest}\n")
    with pytest.raises(EnvironmentLacks, match="no wheel of thing 1"):
        wheelhouse.resolve(store, lock, AMD64, "3.11", "2_36")


@pytest.mark.parametrize(
    "text", ["thing==1\n", "thing>=1 --hash=sha256:" + "0" * 64, "", "thing==1 --hash=sha256:123\n"]
)
def test_a_lock_that_does_not_pin_is_bad_input(tmp_path, text):
    with pytest.raises(BadInput):
        wheelhouse.read_lock(lock_of(tmp_path, text))
