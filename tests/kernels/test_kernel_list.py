from __future__ import annotations

import pytest

from sparkforge.core.arch import Arch
from sparkforge.core.errors import BadInput
from sparkforge.inputs.kernel_list import load_kernels


def test_ours_are_valid_and_have_their_sources():
    declared = load_kernels()
    assert "mxfp4_linear_decode" in declared.kernels
    assert all((declared.root / source).is_file() for source in declared.sources)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(BadInput, match="no kernel 'gemm'") as raised:
        load_kernels(["gemm"])
    assert "mxfp4_linear_decode" in raised.value.why


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("mma: none", "mma: blockscaled", "kernels.mxfp4_linear_decode.mma|kernels"),
        ("entry:", "entrypoint:", "entrypoint"),
        ("csrc/mxfp4_linear_decode.cu", "csrc/gone.cu", "csrc/gone.cu is not there"),
        ("version: 0.1.0", "version: 0.1.0\nversion: 0.2.0", "is there twice"),
        ("    mma: none\n", "", "mma"),
    ],
)
def test_a_wrong_declaration_is_one_error_with_its_key(own, old, new, says):
    path = own / "kernels.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(BadInput) as raised:
        load_kernels(root=own)
    assert any(part in str(raised.value) for part in says.split("|"))


def test_a_kernel_may_name_its_only_architectures(own):
    path = own / "kernels.yaml"
    path.write_text(path.read_text().replace("archs: any", 'archs: ["12.1f"]'))
    kernel = load_kernels(root=own).kernels["mxfp4_linear_decode"]
    assert kernel.wants(Arch.parse("12.1f"))
    assert not kernel.wants(Arch.parse("9.0"))


def test_an_architecture_that_is_none_is_refused(own):
    path = own / "kernels.yaml"
    path.write_text(path.read_text().replace("archs: any", "archs: [gb10]"))
    with pytest.raises(BadInput, match="gb10"):
        load_kernels(root=own)
