from __future__ import annotations

import json

import pytest

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.inputs.recipes import Mapping
from sparkforge.overlay import compute


def ops(overlay):
    return {entry.path: entry.op for entry in overlay.manifest.entries}


def test_paths_are_mapped_and_what_no_wheel_carries_is_listed(demo):
    made = demo.overlay(
        {
            "demo/a.py": b"VALUE = 'new'\n",
            "demo/new/c.py": b"",
            "demo/gone.py": None,
            "csrc/k.cu": b"// ours\n",
            "tests/test_a.py": b"assert 1\n",
            "docs/x.md": b"x",
        }
    )
    assert ops(made) == {
        "demo/a.py": "replace",
        "demo/new/c.py": "add",
        "demo/gone.py": "delete",
        "demo/data/csrc/k.cu": "replace",
        "demo/sparkforge_tree.txt": "add",
    }
    assert made.manifest.not_shipped == ["docs/x.md", "tests/test_a.py"]
    assert (made.path / "files/demo/data/csrc/k.cu").read_bytes() == b"// ours\n"
    assert (made.path / "files/demo/sparkforge_tree.txt").read_text() == made.manifest.tree + "\n"


def test_a_series_that_changes_nothing_still_says_its_tree(demo):
    made = demo.overlay({})
    assert ops(made) == {"demo/sparkforge_tree.txt": "add"}
    assert made.manifest.tree == demo.pin_tree


def test_the_same_input_is_the_same_overlay_and_other_input_another(demo):
    first, again = demo.overlay({"demo/a.py": b"1\n"}), demo.overlay({"demo/a.py": b"1\n"})
    assert (first.path, first.digest) == (again.path, again.digest)
    stand_in = compute.StandIn("demo-cpu", "1.0", "1.0+cpu", {})
    others = [demo.overlay({"demo/a.py": b"2\n"}), demo.overlay({"demo/a.py": b"1\n"}, stand_ins=[stand_in])]
    assert len({first.path, *(other.path for other in others)}) == 3


def test_the_executable_bit_is_kept(demo):
    made = demo.overlay({"demo/tool.sh": b"#!/bin/sh\n"}, modes={"demo/tool.sh": "100755"})
    assert {e.path: e.mode for e in made.manifest.entries}["demo/tool.sh"] == 0o755


def test_a_symbolic_link_is_refused(demo):
    with pytest.raises(BadInput, match="not a plain file"):
        demo.overlay({"demo/link": b"a.py"}, modes={"demo/link": "120000"})
    assert not list(demo.store.root.glob("overlay/*"))


def test_the_longest_folder_wins(demo):
    folders = (Mapping("demo/", "demo/"), Mapping("demo/sub/", "demo/other/"))
    upstream = type(demo.upstream)(
        **{name: getattr(demo.upstream, name) for name in demo.upstream.__struct_fields__} | {"overlay": folders}
    )
    made = demo.overlay({"demo/sub/b.py": b"B = 1\n"}, upstream=upstream)
    assert "demo/other/b.py" in ops(made)


def test_an_upstream_without_a_package_folder_is_refused(demo):
    upstream = type(demo.upstream)(
        **{name: getattr(demo.upstream, name) for name in demo.upstream.__struct_fields__}
        | {"overlay": (Mapping("csrc/", "x/"),)}
    )
    with pytest.raises(BadInput, match="no package folder"):
        demo.overlay({"csrc/k.cu": b"1\n"}, upstream=upstream)


def test_a_broken_manifest_is_named(demo):
    made = demo.overlay({})
    (made.path / "manifest.json").write_text(json.dumps({"format": 1}))
    with pytest.raises(CheckFailed, match="stored overlay is broken"):
        compute.read(made.path)


def test_a_path_with_odd_bytes_survives(demo):
    made = demo.overlay({'demo/é "b"\t.py': b""})
    assert [entry.path for entry in made.manifest.entries] == ["demo/sparkforge_tree.txt", 'demo/é "b"\t.py']
