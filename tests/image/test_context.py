import json
from dataclasses import replace

import pytest

from sparkforge.core.errors import BadInput, CheckFailed


def names(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_a_context_holds_what_the_dockerfile_reads_and_wheels_are_links(demo):
    made = demo.assemble("first")
    found = names(made.path)
    for part in ("tools/uv-0.0.1-py3-none-any.whl", "runtime/lock.txt", "upstream/lock.txt", "overlay/apply.py"):
        assert part in found
    assert "overlay/vllm/manifest.json" in found
    assert "images/run/entrypoint" in found
    assert json.loads((made.path / "manifest.json").read_text())["stack"] == "demo"
    wheel = demo.runtime[0]
    assert (made.path / "runtime" / "wheels" / wheel.name).samefile(wheel.path)
    assert made.bytes > wheel.path.stat().st_size


def test_digests_change_with_their_part_alone(demo):
    first, other = demo.assemble("first").digests, demo.assemble("other").digests
    assert {name for name in first if first[name] != other[name]} == {"OVERLAY"}
    upstream = replace(demo, upstream=(replace(demo.upstream[0], sha256="0" * 64),)).assemble("first").digests
    assert {name for name in first if first[name] != upstream[name]} == {"UPSTREAM"}
    assert demo.assemble("first").digests == first


def test_modes_are_readable_by_any_user(demo):
    made = demo.assemble("first")
    kernels = made.path / "kernels" / "sparkforge_kernels"
    assert kernels.stat().st_mode & 0o777 == 0o755
    assert (made.path / "images" / "run" / "entrypoint").stat().st_mode & 0o777 == 0o755
    assert (kernels / "__init__.py").stat().st_mode & 0o777 == 0o644


def test_a_missing_wheel_leaves_the_last_context_and_nothing_beside_it(demo):
    made = demo.assemble("first")
    before = names(made.path)
    lost = replace(demo.upstream[0], path=demo.folder / "gone.whl")
    with pytest.raises(CheckFailed, match="not in the store"):
        replace(demo, upstream=(lost,)).assemble("first")
    assert names(made.path) == before
    assert [folder.name for folder in made.path.parent.iterdir()] == ["demo"]


def test_a_file_that_is_no_wheel_is_refused(demo):
    odd = replace(demo.upstream[0], name="vllm.whl")
    with pytest.raises(BadInput, match=r"not a wheel's file name"):
        replace(demo, upstream=(odd,)).assemble("first")


def test_modules_stand_under_their_content_and_are_linked_from_the_tree_that_they_were_made_of(demo):
    first, tree = demo.assemble("first"), demo.modules("first").tree
    assert names(first.path / "aot") == ["ffffffffffffffff/probe/probe.so"]
    link = first.path / "overlay" / "links" / "flashinfer" / "data" / "aot" / tree
    assert str(link.readlink()) == "f" * 16
    other = demo.assemble("other")
    assert names(other.path / "aot") == names(first.path / "aot")
    assert not link.is_symlink()


def test_an_image_without_modules_has_no_link(demo):
    made = demo.assemble("first", ahead=False)
    assert names(made.path / "aot") == []
    assert list((made.path / "overlay" / "links").iterdir()) == []
