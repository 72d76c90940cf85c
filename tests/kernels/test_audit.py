from __future__ import annotations

import shutil
import subprocess

import pytest

from sparkforge.core.arch import Arch, parse_archs
from sparkforge.core.errors import CheckFailed
from sparkforge.core.platforms import AMD64, ARM64, Platform
from sparkforge.inputs.kernel_list import load_kernels
from sparkforge.inspect import findings
from sparkforge.inspect.findings import Severity
from sparkforge.inspect.kernel_audit import COLUMNS, audit
from sparkforge.inspect.sass import DeviceFunction, cubins, read_code, read_cubin
from sparkforge.kernels.library import build

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]


def errors(report):
    return sorted({finding.rule for finding in report.findings if finding.severity is Severity.ERROR})


def checked(store, tools, declared, built_for, *, asked_for=None, platform=None, **more):
    built = build(store, declared, parse_archs(built_for), Platform.host())
    return audit(
        built.library,
        archs=parse_archs(asked_for or built_for),
        platform=platform or Platform.host(),
        kernels=declared.kernels,
        inspector=tools,
        **more,
    )


def test_ours_pass_for_the_product_on_both_hosts(store, tools, platform):
    declared, archs = load_kernels(), parse_archs("12.1f")
    built = build(store, declared, archs, platform)
    report = audit(built.library, archs=archs, platform=platform, kernels=declared.kernels, inspector=tools)
    assert report.passed
    assert not report.findings
    functions = [each for each in report.code.functions if each.is_of("mxfp4_linear_decode_kernel")]
    assert len(functions) == 11, "one for each plan"
    assert all(each.mma for each in functions), "tensor cores multiply"
    assert report.as_json()["archs"] == ["12.1f"]
    assert "mxfp4_linear_decode_kernel<2, 15, 3, 3, 1, 1>" in {row[1] for row in report.rows()}
    assert all(len(row) == len(COLUMNS) for row in report.rows())


def test_a_library_without_code_for_the_arch_asked_for(store, tools):
    report = checked(store, tools, load_kernels(), "12.1f", asked_for="12.1f,9.0")
    assert errors(report) == ["arch"]
    with pytest.raises(CheckFailed, match="did not pass") as raised:
        report.require()
    assert "9.0" in raised.value.why


def test_family_code_is_told_from_plain_code(store, tools):
    report = checked(store, tools, load_kernels(), "12.1f", asked_for="12.1")
    assert errors(report) == ["arch"]
    assert "there is code for: 12.1f" in next(f.says for f in report.findings if f.rule == "arch")


@pytest.mark.parametrize("arch", ["12.1f", "12.1a", "12.0f"])
def test_a_block_scaled_kernel_built_with_a_suffix_holds_its_instruction(store, tools, probe, arch):
    report = checked(store, tools, probe, arch)
    assert report.passed, report.findings
    assert [each.block_scaled for each in report.code.functions] == [1, 1]
    assert not any(each.traps for each in report.code.functions)


def test_built_for_plain_12_1_it_silently_does_not(store, tools, probe):
    report = checked(store, tools, probe, "12.1")
    assert errors(report) == ["block-scaled-mma"]
    assert {f.says.split(":")[0] for f in report.findings if f.rule == "block-scaled-mma"} == {
        "silent_probe",
        "trap_probe",
    }
    assert next(f.do for f in report.findings if f.rule == "block-scaled-mma") == "--arch 12.1f"


def test_a_guard_that_traps_is_reported(store, tools, probe):
    report = checked(store, tools, probe, "12.1")
    (trap,) = [finding for finding in report.findings if finding.rule == "trap"]
    assert trap.severity is Severity.WARNING
    assert "trap_probe" in trap.says


def test_an_older_generation_may_run_the_software_twin(store, tools, probe):
    assert "block-scaled-mma" not in errors(checked(store, tools, probe, "9.0"))


def test_the_wrong_machine(store, tools):
    other = ARM64 if Platform.host() == AMD64 else AMD64
    assert errors(checked(store, tools, load_kernels(), "12.1f", platform=other)) == ["elf-machine"]


def test_an_entry_or_an_export_that_is_not_there(store, tools, probe):
    report = checked(store, tools, probe, "12.1f")
    ours = audit(
        report.library,
        archs=parse_archs("12.1f"),
        platform=Platform.host(),
        kernels=load_kernels().kernels,
        inspector=tools,
    )
    assert errors(ours) == ["entry", "export"]


def test_a_c_library_that_is_too_new(store, tools, monkeypatch):
    monkeypatch.setitem(findings.GLIBCXX, "2_17", (3, 4, 30))
    assert errors(checked(store, tools, load_kernels(), "12.1f", glibc="2_17")) == ["glibc"]
    assert checked(store, tools, load_kernels(), "12.1f", glibc="2_36").passed


def test_a_library_without_any_device_code(store, tools, tmp_path):
    library = next(iter(store.root.glob("toolchain/*/tvm_ffi/lib/libtvm_ffi.so")))
    copy = shutil.copy(library, tmp_path / "host_only.so")
    assert read_code(copy, tools).archs == ()


def test_a_file_that_cuobjdump_cannot_read(tools, tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    with pytest.raises(CheckFailed):
        read_code(broken, tools)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("_ZN10sparkforge26mxfp4_linear_decode_kernelILi8EEEvPK5uint4", "mxfp4_linear_decode_kernel<8>"),
        ("_ZN10sparkforge3gemILi8ELb1EEEvPf", "gem<8, 1>"),
        ("_Z10trap_probePfPKjS1_S1_", "trap_probe"),
        ("plain", "plain"),
    ],
)
def test_a_name_for_people(name, short):
    assert DeviceFunction(Arch.parse("12.1f"), name).short == short


def test_an_entry_is_found_by_its_whole_name():
    name = "_ZN10sparkforge26mxfp4_linear_decode_kernelILi8EEEvPK5uint4"
    arch = Arch.parse("12.1f")
    assert DeviceFunction(arch, name).is_of("mxfp4_linear_decode_kernel")
    assert not DeviceFunction(arch, name).is_of("linear_decode_kernel")
    assert not DeviceFunction(arch, name).is_of("mxfp4_linear_decode")
    assert DeviceFunction(arch, "plain").is_of("plain")


def test_a_library_taken_apart_holds_the_same_as_in_one_go(store, tools, tmp_path):
    built = build(store, load_kernels(), parse_archs("12.1f,9.0"), Platform.host())
    code = read_code(built.library, tools)
    parts = cubins(built.library, tools, tmp_path)
    assert {arch.text for arch, _ in parts} == {"12.1f", "9.0"}
    functions = [function for arch, cubin in parts for function in read_cubin(cubin, arch, tools)]
    assert sorted(functions, key=str) == sorted(code.functions, key=str)
    assert all(each.opcodes.total() == each.instructions > 0 for each in functions)
    assert all(each.registers for each in functions)


def test_a_library_without_device_code_has_no_parts(tools, tmp_path):
    source = tmp_path / "plain.c"
    source.write_text("int f(void) { return 1; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "plain.so", source], check=True)
    assert cubins(tmp_path / "plain.so", tools, tmp_path) == []
