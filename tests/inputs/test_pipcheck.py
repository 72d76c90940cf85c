from __future__ import annotations

import msgspec
import pytest

from sparkforge.core.errors import CheckFailed
from sparkforge.core.paths import ROOT
from sparkforge.core.platforms import AMD64, ARM64
from sparkforge.inputs import pipcheck
from sparkforge.inputs.recipes import load, load_stack


def put(site, name, version, *requires):
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = "".join(f"Requires-Dist: {one}\n" for one in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}\n")


@pytest.fixture
def stack(tmp_path):
    folder = tmp_path / "locks"
    folder.mkdir()
    (folder / "pip-check.yaml").write_text(
        'serve: []\ncpu:\n  - {says: "a requires gone, which is not installed", why: not needed}\n'
    )
    return msgspec.structs.replace(load_stack(), locks=str(folder))


def test_missing_and_other_versions_are_found_and_markers_are_the_platforms(tmp_path):
    put(
        tmp_path,
        "a",
        "1.0",
        "B_b>=2",
        "gone",
        'arm; platform_machine == "aarch64"',
        'old; python_version < "3.12"',
        "x; extra == 'x'",
    )
    put(tmp_path, "b-b", "1.0")
    common = ["a requires b-b>=2, but 1.0 is installed", "a requires gone, which is not installed"]
    assert pipcheck.conflicts(tmp_path, AMD64, "3.12") == common
    assert pipcheck.conflicts(tmp_path, ARM64, "3.11") == sorted(
        [*common, "a requires arm, which is not installed", "a requires old, which is not installed"]
    )


def test_what_is_named_may_occur_and_must(stack, tmp_path):
    site = tmp_path / "site"
    put(site, "a", "1.0", "gone")
    assert pipcheck.check(stack, "cpu", site, AMD64, "3.11") == ["a requires gone, which is not installed"]
    with pytest.raises(CheckFailed, match="not consistent") as caught:
        pipcheck.check(stack, "serve", site, AMD64, "3.11")
    assert "not expected: a requires gone" in caught.value.why
    put(site, "gone", "1.0")
    with pytest.raises(CheckFailed) as caught:
        pipcheck.check(stack, "cpu", site, AMD64, "3.11")
    assert "does not occur: a requires gone" in caught.value.why


def test_every_exception_of_the_project_has_a_reason():
    stack = load_stack()
    named = load(ROOT / stack.locks / "pip-check.yaml", pipcheck.KnownConflicts)
    assert all(one.why for one in (*named.serve, *named.cpu))
