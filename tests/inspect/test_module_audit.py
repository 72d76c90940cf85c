"""The audit of modules: names of real kernels, and every finding that it can make."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sparkforge.core.arch import Arch, parse_archs
from sparkforge.core.errors import CheckFailed
from sparkforge.core.platforms import AMD64
from sparkforge.inspect import module_audit as auditing
from sparkforge.inspect import module_facts as facts
from sparkforge.inspect import sass
from sparkforge.inspect.elf import Elf
from sparkforge.inspect.kernel_names import Gemm, gemm
from sparkforge.inspect.sass import DeviceFunction

NAMES = (Path(__file__).parent / "files" / "kernel-names.txt").read_text().splitlines()
F121, PLAIN121, F120 = Arch.parse("12.1f"), Arch.parse("12.1"), Arch.parse("12.0f")


@pytest.mark.parametrize(
    ("index", "is_"),
    [
        (0, Gemm("FP8", "FP4", (128, 128, 128), False, "BF16")),
        (1, Gemm("FP4", "FP8", (128, 32, 128), True, "BF16")),
        (2, Gemm("FP8", "FP4", (128, 64, 128), True, "BF16")),
        (3, Gemm("FP4", "FP8", (128, 128, 128), False, "BF16")),
    ],
)
def test_a_kernels_name_says_what_it_is(index, is_):
    assert gemm(NAMES[index]) == is_


def test_tiles_whose_last_number_is_new_or_is_the_second_are_read_too():
    deep = NAMES[0].replace("NSC_ILi128EEESI_SI_EEE", "NSC_ILi128EEESI_NSC_ILi256EEEEEE")
    deep = deep.replace("ELi2EEEJSJ_", "ELi2EEEJSK_")  # one component more stands before the tuple
    assert gemm(deep).tile == (128, 128, 256)
    tall = NAMES[1].replace("NSC_ILi128EEENSC_ILi32EEESI_EEE", "NSC_ILi256EEENSC_ILi128EEESJ_EEE")
    assert gemm(tall).tile == (256, 128, 128)
    assert gemm(tall).text == "FP4xFP8 256x128x128 finalize BF16"


def test_other_kernels_are_none_and_what_cannot_be_read_is_an_error():
    assert gemm("_ZN9fused_moe10run_globalINS_21Fused_Moe_Kernel_sm80IN7cutlass10bfloat16_tEEEEvT_") is None
    with pytest.raises(ValueError, match="cannot be read"):
        gemm(NAMES[0].replace("NSC_ILi128EEESI_SI_EEE", "NSC_ILi128EEES2_SI_EEE"))
    with pytest.raises(ValueError, match="cannot be read"):
        gemm(NAMES[0].replace("CollectiveEpilogue", "AnotherEpilogue"))


def test_what_is_wanted_are_all_tiles_both_ways_with_both_epilogues():
    assert len({each.text for each in auditing.WANTED}) == 12
    assert {gemm(name) for name in NAMES} <= set(auditing.WANTED)


SOUND = {"UTMALDG": 4, "ACQBULK": 1, "QMMA": 64, "IADD3": 10}


def function(name, *, opcodes=None, mma=("QMMA.SF.16832.F32.E4M3.E2M1.E8",), traps=0, arch=F121):
    counts = Counter(SOUND if opcodes is None else opcodes)
    held = Counter(dict.fromkeys(mma, counts["QMMA"]))
    return DeviceFunction(
        arch, name, instructions=counts.total() + traps, mma=held, traps=traps, opcodes=counts, registers=168
    )


@pytest.fixture
def read(monkeypatch, tmp_path):
    """A function that audits a module with these functions, as if cuobjdump had shown them."""

    def audited(*functions, name="fused_moe_120", cubin=b"", exports=("init",), machine=62, archs="12.1f", code=F121):
        def cubins(library, inspector, folder):
            (folder / "1.cubin").write_bytes(cubin)
            return [(code, folder / "1.cubin")]

        monkeypatch.setattr(auditing, "cubins", cubins)
        monkeypatch.setattr(auditing, "read_cubin", lambda *_: list(functions))
        monkeypatch.setattr(auditing, "read_elf", lambda _: Elf(machine, (), (), ("__tvm_ffi_init",)))
        said = facts.BuiltModule(
            name=name, file="x.so", sha256="s", size=1, exports=list(exports), needed=[], versions={}, sources="",
            link_seconds=0.0,
        )  # fmt: skip
        return auditing.read(tmp_path / "x.so", said, parse_archs(archs), AMD64, tmp_path)

    return audited


def rules(module):
    return sorted({finding.rule for finding in module.findings})


def test_a_sound_module_has_no_findings_and_its_counts_are_kept(read, monkeypatch):
    monkeypatch.setattr(auditing, "WANTED", tuple(gemm(name) for name in NAMES))
    module = read(*(function(name) for name in NAMES), function("_Z5otherv", opcodes={"HMMA": 3, "MOV": 1}, mma=()))
    assert rules(module) == []
    assert (module.kernels, module.cubins, module.archs, module.arch_traps) == (5, 1, ["12.1f"], 0)
    assert module.opcodes == {"UTMALDG": 16, "ACQBULK": 4, "HMMA": 3, "QMMA": 256}
    one = next(family for family in module.families if family.name == "FP4xFP8 128x32x128 finalize BF16")
    assert (one.kernels, one.block_scaled, one.tma_loads, one.pdl_waits, one.registers) == (1, 64, 4, 1, 168)
    assert one.mma == {"QMMA.SF.16832.F32.E4M3.E2M1.E8": 64}
    assert module.row()[5:] == (256, 0, 16, 0)


def test_a_tile_that_is_not_there_is_named(read):
    module = read(*(function(name) for name in NAMES))
    assert rules(module) == ["tile"]
    said = [finding.says for finding in module.findings]
    assert len(said) == 12 - len(NAMES)
    assert "there is no kernel FP8xFP4 128x32x128 plain BF16" in said
    assert rules(read(*(function(name) for name in NAMES), name="another")) == []


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"mma": ("HMMA.16816.F32.BF16",)}, "block-scaled-mma"),
        ({"opcodes": SOUND | {"UTMALDG": 0}}, "tma"),
        ({"opcodes": SOUND | {"ACQBULK": 0}}, "pdl"),
        ({"traps": 2}, "trap"),
    ],
)
def test_one_kernel_of_a_family_that_lacks_something_is_found_among_others(read, changed, rule):
    module = read(function(NAMES[0]), function(NAMES[0], **changed), name="another")
    assert rules(module) == [rule]
    assert "FP8xFP4 128x128x128 plain BF16" in module.findings[0].says


def test_the_message_of_a_missing_instruction_is_found_whatever_the_code_is(read):
    message = b"\0ERROR : Arch conditional MMA instruction used without targeting appropriate compute capability.\0"
    module = read(function("_Z5otherv", opcodes={"MOV": 1}, mma=()), name="another", cubin=b"\x7fELF" + message)
    assert (rules(module), module.arch_traps) == (["arch-trap"], 1)


@pytest.mark.parametrize(
    ("code", "asked", "found"),
    [
        (F121, "12.1f", []),
        (F120, "12.1f", []),  # the family's lowest runs on all of it
        (Arch.parse("12.1a"), "12.1f", []),
        (PLAIN121, "12.1f", ["family"]),
        (Arch.parse("12.0a"), "12.1f", ["arch"]),
        (Arch.parse("9.0a"), "12.1f", ["arch"]),
        (F121, "12.0f", ["arch"]),
    ],
)
def test_machine_code_is_for_the_device_and_for_its_family(read, code, asked, found):
    assert rules(read(function("_Z1fv", opcodes={"MOV": 1}, mma=()), name="m", code=code, archs=asked)) == found


def test_a_module_without_kernels_for_another_machine_or_without_an_export(read):
    plain = function("_Z1fv", opcodes={"MOV": 1}, mma=())
    assert rules(read(name="m")) == ["kernels"]
    assert rules(read(plain, name="m", machine=183)) == ["elf-machine"]
    assert rules(read(plain, name="m", exports=("init", "lost"))) == ["export"]


def test_xqa_needs_its_fences(read):
    assert rules(read(function("_Z1fv", opcodes={"MOV": 1}, mma=()), name="xqa_bf16")) == ["fence"]
    assert rules(read(function("_Z1fv", opcodes={"MEMBAR": 2}, mma=()), name="xqa_bf16")) == []


def test_a_folder_passes_only_with_all_of_its_modules(read, monkeypatch, tmp_path):
    sound = read(function("_Z1fv", opcodes={"MOV": 1}, mma=()), name="m")
    broken = read(name="n")
    empty = {"sha256": "s", "size": 1, "exports": [], "needed": [], "versions": {}, "sources": "", "link_seconds": 0.0}
    said = [facts.BuiltModule(name=name, file=f"{name}.so", **empty) for name in ("m", "n")]
    built = {"format": 1, "key": "k", "platform": "linux/amd64", "archs": ["12.1f"], "tree": "t", "toolchain": ""}
    facts.write(tmp_path, facts.AotFacts(**built, versions={}, modules=said, units=[], reads={}, left_out={}))
    monkeypatch.setattr(auditing, "read", lambda library, said, *_: {"m": sound, "n": broken}[said.name])
    lines = []
    report = auditing.audit(tmp_path, tmp_path, say=lines.append)
    assert (report.passed, len(lines)) == (False, 2)
    with pytest.raises(CheckFailed, match="did not pass the audit") as refused:
        report.demand("it")
    assert refused.value.why == "n: [kernels] it holds no kernel at all"
    monkeypatch.setattr(auditing, "read", lambda *_: sound)
    auditing.audit(tmp_path, tmp_path).demand("it")


def test_code_of_two_targets_of_one_number_cannot_be_told_apart(monkeypatch, tmp_path):
    shown = [
        "Fatbin elf code:",
        "arch = sm_121f",
        "Fatbin ptx code:",
        "arch = sm_120",
        "Fatbin elf code:",
        "arch = sm_121",
    ]
    monkeypatch.setattr(sass, "_cuobjdump", lambda *_, **__: shown)
    with pytest.raises(CheckFailed, match="cannot be told apart") as refused:
        sass.cubins(tmp_path / "x.so", tmp_path, tmp_path)
    assert refused.value.why == "12.1 and 12.1f"
