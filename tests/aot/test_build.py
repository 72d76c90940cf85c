"""What is compiled again, and what is not; on FlashInfer in miniature, with real compilers."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparkforge.aot import modules, plan
from sparkforge.aot.objects import RECORDS
from sparkforge.aot.selection import PartModules
from sparkforge.aot.tools import ModuleTools
from sparkforge.core.errors import CheckFailed
from sparkforge.core.hashing import sha256_file
from sparkforge.core.platforms import ARM64, Platform
from sparkforge.inputs import toolchain
from sparkforge.inspect import module_facts as facts
from sparkforge.inspect.elf import read_elf

HEADER = "#pragma once\n#define FIRST 2\n"


def sources(made):
    return {(unit.module, Path(unit.path).name) for unit in made.facts.units}


def test_a_build_gives_modules_that_load_and_say_what_they_were_made_of(toy):
    made = toy.build()
    assert (made.compiled, made.linked) == (3, 2)  # common.cpp belongs to both and is one object
    assert sources(made) == {("one", "one.cpp"), ("one", "common.cpp"), ("two", "two.cpp"), ("two", "common.cpp")}
    assert ctypes.CDLL(str(made.folder / "one/one.so")).__getattr__("__tvm_ffi_one")() == 12
    first, second = made.facts.modules
    assert first.sha256 == sha256_file(made.folder / first.file)
    assert (first.exports, second.exports) == (["one"], ["two"])
    assert "flashinfer/data/include/toy/first.h" in made.facts.reads
    assert "generated/generated.h" in made.facts.reads
    assert not any(path.startswith("/") for path in made.facts.reads)
    for unit in made.facts.units:
        assert unit.cpu_seconds > 0
        assert unit.peak_bytes > 1 << 20
        assert unit.size > 0


def test_nothing_to_do_is_nothing_done(toy):
    first, second = toy.build(), toy.build()
    assert (second.compiled, second.linked, second.folder) == (0, 0, first.folder)
    assert "reused" in second.words
    assert "compiled 3 of 4 objects" in first.words


def test_an_edited_header_compiles_its_dependents_alone(toy):
    first = toy.build()
    toy.edit("flashinfer/data/include/toy/first.h", HEADER)
    second = toy.build()
    assert (second.compiled, second.linked) == (1, 1)
    assert second.facts.key != first.facts.key
    assert first.facts.modules[1] == second.facts.modules[1]
    assert ctypes.CDLL(str(second.folder / "one/one.so")).__getattr__("__tvm_ffi_one")() == 13


def test_an_edit_of_python_compiles_nothing_and_gives_the_same_modules(toy):
    first = toy.build()
    toy.edit("flashinfer/core.py", "NEW = 1\n")
    second = toy.build()
    assert (second.compiled, second.linked) == (0, 0)
    assert second.facts.tree != first.facts.tree
    assert second.facts.key == first.facts.key
    assert second.folder != first.folder


def test_an_edit_and_its_undoing_compile_once(toy):
    first = toy.build()
    toy.edit("flashinfer/data/include/toy/first.h", HEADER)
    toy.build()
    toy.edit("flashinfer/data/include/toy/first.h", "#pragma once\n#define FIRST 1\n")
    toy.edit("flashinfer/core.py", "NEW = 1\n")
    third = toy.build()
    assert third.compiled == 0
    assert third.facts.key == first.facts.key


def test_a_header_that_would_be_found_instead_is_noticed(toy):
    """Added in a folder that is searched earlier: no file that was read has changed, and yet another is read now."""
    toy.build()
    toy.edit(
        "flashinfer/data/csrc/generated.h", "#pragma once\n#define GENERATED 6\n"
    )  # beside the source: comes first
    second = toy.build()
    assert second.compiled == 1
    assert ctypes.CDLL(str(second.folder / "one/one.so")).__getattr__("__tvm_ffi_one")() == 13


def test_a_flag_is_part_of_the_key(toy):
    toy.build()
    text = (Path(__file__).with_name("toy") / "flashinfer/aot_gpt_oss.py").read_text()
    toy.edit("flashinfer/aot_gpt_oss.py", text.replace("-O1", "-O2"))
    assert toy.build().compiled == 3


def test_the_same_sources_give_the_same_bytes_in_another_place(toy, tmp_path):
    first = toy.build()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for kind in ("toolchain", "files"):
        (elsewhere / kind).symlink_to((toy.store.root / kind).resolve())
    second = modules.build(type(toy.store).open(elsewhere), toy.wanted(), lambda: Path(sys.executable), at_once=1)
    assert second.compiled == 3
    assert second.facts.modules[0].sha256 == first.facts.modules[0].sha256
    assert second.facts.key == first.facts.key
    for module in first.facts.modules:
        content = (first.folder / module.file).read_bytes()
        assert str(toy.store.root).encode() not in content
        assert b"aot-work" not in content


def test_a_changed_object_or_module_in_the_store_is_refused(toy):
    made = toy.build()
    module = made.folder / "one" / "one.so"
    module.chmod(0o644)
    module.write_bytes(module.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckFailed, match="damaged"):
        toy.build()


def test_a_source_that_does_not_compile_keeps_what_did(toy):
    with pytest.raises(CheckFailed, match="ended with status") as failed:
        toy.asking(broken=True).build(at_once=1)
    assert "broken.cpp" in failed.value.why
    assert "error:" in failed.value.why
    assert not list((toy.store.root / "aot-work").iterdir())
    assert toy.build(at_once=1).compiled < 3


def test_a_symbol_that_nobody_defines_fails_at_the_link(toy):
    toy.edit("flashinfer/data/csrc/common.cpp", "int another() { return 0; }\n")
    with pytest.raises(CheckFailed, match="ended with status"):
        toy.build()


def test_a_module_without_a_function_of_tvm_ffi_is_refused(toy):
    toy.edit("flashinfer/data/csrc/two.cpp", "int two() { return 0; }\n")
    with pytest.raises(CheckFailed, match="exports no function"):
        toy.build()


def test_a_killed_build_goes_on_where_it_was(toy, tmp_path):
    """Killed while its last object is being compiled: that one alone is compiled then; what was left is swept."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = tmp_path / "run.py"
    script.write_text(RUN)
    # A compiler that waits at a gate from the third source on.
    cxx, count = tmp_path / "g++", tmp_path / "count"
    wait = f'echo >> {count}; [ "$(wc -l < {count})" -le 2 ] || read line < {gate}'
    cxx.write_text(f'#!/bin/sh\ncase "$*" in *.cpp*) {wait};; esac\nexec {shutil.which("g++")} "$@"\n')
    cxx.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = [sys.executable, script, toy.store.root, toy.wheel, toy.folder, Path(__file__).parent]
    child = subprocess.Popen(list(map(str, words)), env=environment, start_new_session=True)
    records = toy.store.root / RECORDS
    deadline = time.monotonic() + 60
    try:
        while len(list(records.glob("*/*.json"))) < 2:
            assert time.monotonic() < deadline
            assert child.poll() is None
            time.sleep(0.02)
    finally:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself: the assertion above says so
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    assert list((toy.store.root / "aot-work").iterdir())
    assert not list(toy.store.root.glob("aot/*"))
    assert toy.store.sweep()
    assert not list((toy.store.root / "aot-work").iterdir())
    assert toy.build().compiled == 1


RUN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[4])
import conftest
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store
toy = conftest.Toy(Path(sys.argv[3]), Store.open(Path(sys.argv[1])), Path(sys.argv[2]), Platform.host(), {})
toy.build(at_once=1)
"""


def test_a_module_of_another_platform(toy, platform):
    made = toy.on(platform).build()
    assert made.facts.platform == platform.oci
    for module in made.facts.modules:
        library = read_elf(made.folder / module.file)
        assert library.machine == platform.elf_machine
        assert not any("/" in name for name in library.needed)


def test_a_cross_build_names_its_compilers(toy):
    unit = plan.CompileUnit("one", "flashinfer/a.cu", ("-O1",), cuda=True)
    tools = ModuleTools(Path("/t/bin/nvcc"), "aarch64-linux-gnu-g++", Path(), Path(), Path(), "", ARM64)
    words = unit.command(tools, "out/x.o")
    assert "-ccbin=aarch64-linux-gnu-g++" in words
    assert words[0] == "/t/bin/nvcc"
    host = plan.CompileUnit("one", "flashinfer/a.cpp", (), cuda=False).command(tools, "out/x.o")
    assert host[0] == "aarch64-linux-gnu-g++"


@pytest.mark.nvcc
def test_cuda_is_compiled_for_the_arch_that_was_asked_for(toy, platform, shared):
    made = toy.on(platform).asking(cuda=True).build()
    assert made.compiled == 4
    library = made.folder / "two/two.so"
    assert "fill" in made.facts.modules[1].exports
    assert "libcudart.so.13" in read_elf(library).needed
    done = subprocess.run(
        [toolchain.inspector(shared) / "cuobjdump", "--list-elf", library], capture_output=True, text=True, check=True
    )
    assert "sm_121." in done.stdout


@pytest.mark.nvcc
def test_cuda_gives_the_same_bytes_again(toy):
    one = toy.asking(cuda=True)
    first = one.build()
    for kind in ("aot", "aot-modules", "aot-objects", "aot-records"):
        (toy.store.root / kind).rename(toy.store.root / f"was-{kind}")
    second = one.build()
    assert second.compiled == 4
    assert second.facts.key == first.facts.key


def test_a_module_that_only_parts_need_which_are_off_is_neither_compiled_nor_linked(toy):
    off = PartModules("later", on=False, modules=("tw*",))
    made = toy.of_parts(off).build()
    assert (made.compiled, made.linked) == (2, 1)
    assert [module.name for module in made.facts.modules] == ["one"]
    assert made.facts.left_out == {"two": ["later"]}
    assert not (made.folder / "two").exists()
    first, second = modules.listed(toy.store, toy.of_parts(off).wanted(), Path(sys.executable))
    assert (first.left_out, second.left_out, set(second.sources.values())) == ([], ["later"], {False, True})
    every = toy.build()
    assert (every.compiled, every.facts.left_out) == (1, {})
    assert every.facts.key != made.facts.key


def test_what_is_listed_is_what_is_built(toy):
    before = modules.listed(toy.store, toy.wanted(), Path(sys.executable))
    assert {one.name: set(one.sources.values()) for one in before} == {"one": {False}, "two": {False}}
    toy.build()
    after = modules.listed(toy.store, toy.wanted(), Path(sys.executable))
    assert all(all(one.sources.values()) for one in after)


def test_the_facts_are_what_the_docstring_promises(toy):
    made = toy.build()
    said = json.loads((made.folder / facts.NAME).read_text())
    assert set(said) == {
        *(
            "format",
            "key",
            "platform",
            "archs",
            "tree",
            "toolchain",
            "versions",
            "modules",
            "units",
            "reads",
            "left_out",
        )
    }
    assert (said["format"], said["platform"], said["archs"]) == (2, Platform.host().oci, ["12.1f"])


def test_facts_of_another_shape_are_refused(tmp_path):
    (tmp_path / facts.NAME).write_text("{}")
    with pytest.raises(CheckFailed, match="no modules"):
        facts.read(tmp_path)
