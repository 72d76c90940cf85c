from __future__ import annotations

import subprocess
import sys
from importlib.metadata import Distribution

import pytest

from sparkforge.core.arch import parse_archs
from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.hashing import sha256_tree
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store
from sparkforge.inputs.kernel_list import load_kernels
from sparkforge.inputs.toolchain import OWN_NVCC, choose
from sparkforge.inspect.elf import read_elf
from sparkforge.inspect.sass import read_code
from sparkforge.kernels.distribution import FACTS, read
from sparkforge.kernels.library import build

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]
ARCHS = parse_archs("12.1f")


def test_a_library_for_each_platform_and_every_arch(fresh, tools, platform):
    archs = parse_archs("12.1f,9.0a")
    built = build(fresh, load_kernels(), archs, platform)
    assert not built.cached
    assert built.cpu_seconds > 0
    elf = read_elf(built.library)
    assert elf.machine == platform.elf_machine
    declared = {f"__tvm_ffi_{name}" for kernel in load_kernels().kernels.values() for name in kernel.exports}
    ours = {name for name in elf.exports if "decode" in name or "scratch" in name}
    assert ours == declared
    assert all(name.startswith("__tvm_ffi_") for name in elf.exports), "nothing else may meet other libraries' symbols"
    assert "libtvm_ffi.so" in elf.needed
    assert not any("cuda" in name or "torch" in name for name in elf.needed)
    assert read_code(built.library, tools).archs == archs


def test_the_second_build_does_no_work(unlinked, tools):
    first = build(unlinked, load_kernels(), ARCHS, Platform.host())
    second = build(unlinked, load_kernels(), ARCHS, Platform.host())
    assert (first.cached, second.cached) == (False, True)
    assert second.sha256 == first.sha256
    assert second.seconds < 1


@pytest.fixture
def far(store, tmp_path):
    """Another store, at a path of another length, with the same toolchain."""
    far = Store.open(tmp_path / "a" / "longer" / "path" / "of" / "a" / "store")
    for kind in ("toolchain", "files"):
        (far.root / kind).symlink_to(store.root / kind)
    return far


@pytest.mark.online
def test_the_same_bytes_from_another_folder_and_either_nvcc(fresh, far, tools, own, monkeypatch):
    first = build(fresh, load_kernels(), ARCHS, Platform.host())
    monkeypatch.setenv(OWN_NVCC, "0")
    assert choose(Platform.host()).own_nvcc is None
    second = build(far, load_kernels(root=own), ARCHS, Platform.host(), jobs=1)
    assert not second.cached
    assert second.sha256 == first.sha256
    assert sha256_tree(second.folder) == sha256_tree(first.folder)


def test_an_edit_of_a_header_compiles_anew_and_one_of_a_comment_elsewhere_does_not(fresh, tools, own):
    first = build(fresh, load_kernels(root=own), ARCHS, Platform.host())
    (own / "README.md").write_text("not an input")
    assert build(fresh, load_kernels(root=own), ARCHS, Platform.host()).cached
    header = own / "include" / "sparkforge" / "mxfp4.cuh"
    header.write_text(header.read_text().replace("return 0x7fffu;", "return 0x7ffeu;"))
    edited = build(fresh, load_kernels(root=own), ARCHS, Platform.host())
    assert not edited.cached
    assert edited.sha256 != first.sha256


def test_an_edit_of_one_source_compiles_that_one_alone(fresh, tools, own):
    build(fresh, load_kernels(root=own), ARCHS, Platform.host())
    objects = fresh.root / "kernel-objects"
    before = {path.name for path in objects.iterdir()}
    binding = own / "csrc" / "mxfp4_linear_decode_binding.cc"
    binding.write_text(binding.read_text() + "\n// edited\n")
    build(fresh, load_kernels(root=own), ARCHS, Platform.host())
    assert len({path.name for path in objects.iterdir()} - before) == 1


def test_a_source_that_does_not_compile_says_where_and_leaves_nothing(fresh, tools, own):
    source = own / "csrc" / "mxfp4_linear_decode.cu"
    source.write_text(source.read_text() + "\n#error here\n")
    with pytest.raises(CheckFailed, match="nvcc ended with status") as raised:
        build(fresh, load_kernels(root=own), ARCHS, Platform.host())
    assert "csrc/mxfp4_linear_decode.cu" in raised.value.why
    assert not list(fresh.root.glob("*/.partial-*"))
    assert not list(fresh.root.glob("kernels/*"))


def test_a_symbol_that_nobody_defines_is_found_at_link_time(fresh, tools, own):
    source = own / "csrc" / "mxfp4_linear_decode_binding.cc"
    source.write_text(source.read_text().replace("launch(call", "absent(call").replace(
        "namespace {\n", "cudaError_t absent(const Mxfp4LinearDecode&, cudaStream_t);\nnamespace {\n", 1))  # fmt: skip
    with pytest.raises(CheckFailed, match="ended with status") as raised:
        build(fresh, load_kernels(root=own), ARCHS, Platform.host())
    assert "absent" in raised.value.why


def test_plain_and_family_code_of_one_chip_do_not_go_together(fresh, tools):
    with pytest.raises(BadInput, match=r"12\.1 and 12\.1f"):
        build(fresh, load_kernels(), parse_archs("12.1,12.1f"), Platform.host())


def test_a_stored_library_that_was_changed_is_refused(unlinked, tools):
    built = build(unlinked, load_kernels(), ARCHS, Platform.host())
    data = bytearray(built.library.read_bytes())
    data[len(data) // 2] ^= 1
    built.library.write_bytes(data)
    with pytest.raises(CheckFailed, match="was changed") as raised:
        build(unlinked, load_kernels(), ARCHS, Platform.host())
    assert built.sha256 in raised.value.why
    (built.folder / FACTS).write_text("{")
    with pytest.raises(CheckFailed, match="not whole"):
        build(unlinked, load_kernels(), ARCHS, Platform.host())


def test_the_folder_is_a_package_that_pip_lists(unlinked, tools):
    built = build(unlinked, load_kernels(), ARCHS, Platform.host())
    (info,) = built.folder.glob("*.dist-info")
    distribution = Distribution.at(info)
    assert distribution.metadata["Name"] == "sparkforge-kernels"
    recorded = {str(file) for file in distribution.files}
    present = {str(path.relative_to(built.folder)) for path in built.folder.rglob("*") if path.is_file()}
    assert recorded == present
    assert read(built.folder).archs == ("12.1f",)
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "list", "--path", built.folder], check=True, capture_output=True, text=True
    )
    assert "sparkforge-kernels" in listed.stdout
