"""F-04: the tactic that the tuner measured for GEMM2 is the tactic that runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

BINDING = "csrc/fused_moe/cutlass_backend/flashinfer_cutlass_fused_moe_binding.cu"


@pytest.fixture(scope="module")
def program(tree, host, cut, compile_host, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("binding")
    name = "void setRunnerProfiles(Optional<Array<int64_t>> profile_ids)"
    text = cut(tree / BINDING, name, start=name, end="\n  }\n")
    (folder / "set_runner_profiles.inc").write_text(text)
    return compile_host(host / "tactic_ids.cpp", flags=[f"-I{folder}"])


# 12 and 24: FP8 x FP4 on SM12x before its tactics are pruned. 2 and 4: after. 5 and 5: no finalize.
COUNTS = [(12, 24), (2, 4), (6, 12), (5, 5), (8, 3)]


def chosen(program: Path, one: int, two: int) -> dict[tuple[str, str], tuple[str, ...]]:
    out = subprocess.run([program, str(one), str(two)], capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in out.splitlines()]
    return {(words[0], words[1]): tuple(words[2:]) for words in lines}


@pytest.mark.parametrize(("one", "two"), COUNTS)
def test_every_absolute_id_means_itself(program, one, two):
    table = chosen(program, one, two)
    for id1 in range(one):
        for id2 in range(one, one + two):
            got = table[str(id1), str(id2)]
            assert got == (str(id1), str(id2)), f"tactics {id1}, {id2} of {one} + {two} ran {got}"


@pytest.mark.parametrize(("one", "two"), COUNTS)
def test_minus_one_means_the_first_of_each_gemm(program, one, two):
    table = chosen(program, one, two)
    assert table["-1", "-1"] == ("0", str(one))
    assert table["none", "none"] == ("0", str(one))


@pytest.mark.parametrize(("one", "two"), COUNTS)
def test_ids_of_no_tactic_are_refused(program, one, two):
    table = chosen(program, one, two)
    assert table["0", str(one + two)] == ("refused",)
    assert table["0", "-2"] == ("refused",)
    assert table["-2", str(one)] == ("refused",)
    assert table[str(one), str(one)] == ("refused",), "a GEMM2 tactic was taken for GEMM1"


def test_the_bundled_tables_of_relative_ids_still_hold(program):
    table = chosen(program, 12, 24)
    for relative in range(12):
        assert table["0", str(relative)] == ("0", str(12 + relative))
