from __future__ import annotations

import pytest

from sparkforge.core.arch import Arch, parse_archs
from sparkforge.core.errors import BadInput
from sparkforge.core.platforms import AMD64, ARM64, Platform


def test_one_arch_in_every_spelling():
    arch = Arch.parse("12.1f")
    assert (arch.text, arch.sm, arch.torch) == ("12.1f", "121f", "12.1a")
    assert arch.gencode() == ["-gencode=arch=compute_121f,code=sm_121f"]
    assert arch.capability == (12, 1)


@pytest.mark.parametrize("text", ["121f", "12.1x", "12", "", "sm_121", "12.10"])
def test_anything_else_is_bad_input(text):
    with pytest.raises(BadInput):
        Arch.parse(text)


def test_lists_are_sorted_and_each_arch_stands_once():
    assert [arch.text for arch in parse_archs("12.1f, 9.0;12.1f")] == ["9.0", "12.1f"]
    with pytest.raises(BadInput):
        parse_archs(" ")


def test_platforms():
    assert Platform.parse("linux/arm64") == Platform.parse("aarch64") == ARM64
    assert (ARM64.oci, ARM64.uv("2_39"), ARM64.elf_machine) == ("linux/arm64", "aarch64-manylinux_2_39", 183)
    assert Platform.host() in (AMD64, ARM64)
    with pytest.raises(BadInput):
        Platform.parse("linux/riscv64")
