"""What `module_facts` counts: symbols of the module's own objects, and no object that cannot be read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "measure"))

import module_facts

SYMBOLS = {
    "a": "                 U only_uint4\n0000 T entry\n",
    "b": "0000 T only_uint4\n                 U entry\n",
    "c": "                 U only_uint4\n",
}
SOURCES = {"a": "csrc/binding.cu", "b": "gen/moe_gemm_kernels_bf16_uint4.cu", "c": "csrc/other.cu"}
NM = '#!/bin/sh\n[ -s "$1" ] || { echo "$1: file format not recognized" >&2; exit 1; }\ncat "$1"\n'


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store with three objects, and an `nm` that knows what they hold; the third is another module's."""
    nm = tmp_path / "nm"
    nm.write_text(NM)
    nm.chmod(0o755)
    monkeypatch.setitem(module_facts.NM, "linux/arm64", str(nm))
    for key, text in SYMBOLS.items():
        unit = tmp_path / "aot-objects" / key / "unit.o"
        unit.parent.mkdir(parents=True)
        unit.write_text(text)
    modules = {"a": module_facts.MODULE, "b": module_facts.MODULE, "c": "sampling"}
    units = [{"object": key, "path": SOURCES[key], "module": module} for key, module in modules.items()]
    return type("Kept", (), {"root": tmp_path})(), {"units": units}


def test_references_are_counted_among_the_modules_own_objects(store):
    assert module_facts.needed(*store, "linux/arm64") == {
        "objects read": 2,
        "objects for uint4 and uint8": ["moe_gemm_kernels_bf16_uint4.cu"],
        "references to what only they define": {"binding.cu": 1},
    }


def test_an_object_that_nm_cannot_read_ends_the_count(store):
    kept, said = store
    (kept.root / "aot-objects/a/unit.o").write_text("")
    with pytest.raises(SystemExit, match=r"cannot read the object of csrc/binding.cu: .*not recognized"):
        module_facts.needed(kept, said, "linux/arm64")
