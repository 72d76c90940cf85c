"""`check` on a sound series, and once for each thing that it must find."""

from __future__ import annotations

from dataclasses import replace

import pytest
from patch_forge import changed_numbers, make_forge, message

from sparkforge.patches import check, walk
from sparkforge.patches.series import Patch


def laid(forge, *changes, recorded=True):
    patches = forge.patches(*changes)
    forge.test_file()
    loaded = forge.write(patches)
    return forge.write(patches, walk.tree(forge.git, forge.place.tree, loaded) if recorded else None)


TWO = (
    (message("V-01", "numbers: change two"), {"pkg/numbers.txt": changed_numbers(2)}),
    (message("V-02", "code: add a file", depends=["V-01"]), {"pkg/new.py": b"x = 1\n"}),
)


def whats(forge, *places):
    return [(fault.what, fault.why) for report in check.check([forge.place, *places]) for fault in report.faults]


def test_a_sound_series_is_clean(forge):
    loaded = laid(forge, *TWO)
    (report,) = check.check([forge.place])
    assert (report.faults, report.patches, report.tree) == ((), 2, loaded.recorded)
    assert report.clean


@pytest.mark.parametrize(
    ("text", "change", "said"),
    [
        (message(title="no area here"), {"README": b"x\n"}, "its subject names no area"),
        (message(body=""), {"README": b"x\n"}, "no intent"),
        (message(body="FILL-IN: say why"), {"README": b"x\n"}, "no intent"),
        (message(tests=["tests/patches/demo/test_gone.py"]), {"README": b"x\n"}, "no test"),
        (message().replace("Pending", "Perhaps"), {"README": b"x\n"}, "a trailer is wrong"),
        (message(depends=["V-09"]), {"README": b"x\n"}, "depends on a patch that is not before it"),
        (message(drop="exists README"), {"README": b"x\n"}, "needless at this pin"),
        (message(), {"pkg/code.py": b"def broken(:\n"}, "its Python does not compile"),
        (message(), {"pkg/new.py": b"x = \0\n"}, "its Python does not compile"),
    ],
)
def test_what_a_patch_can_lack(forge, text, change, said):
    laid(forge, (text, change))
    assert said in [what for what, _ in whats(forge)]


def test_python_is_compiled_at_every_step_and_not_only_at_the_end(forge):
    laid(
        forge,
        (message("V-01"), {"pkg/code.py": b"def broken(:\n"}),
        (message("V-02"), {"pkg/code.py": b"def whole(): pass\n"}),
    )
    assert "its Python does not compile" in [what for what, _ in whats(forge)]


def test_what_did_not_compile_before_is_the_upstreams(forge):
    forge.commit = forge.made(forge.commit, {"pkg/code.py": b"print 1\n"})
    laid(forge, (message(), {"pkg/code.py": b"print 2\n"}))
    assert whats(forge) == []


def test_one_id_for_two_patches(forge):
    laid(forge, TWO[0], (message("V-01", "code: another"), {"pkg/new.py": b"x = 1\n"}))
    assert "one id for two patches" in [what for what, _ in whats(forge)]


def test_depends_on_a_later_patch(forge):
    laid(forge, (message("V-02", depends=["V-01"]), {"README": b"x\n"}), TWO[0])
    assert ("depends on a patch that is not before it", "V-01 comes after it") in whats(forge)


def test_depends_on_a_patch_of_another_upstream(forge, tmp_path):
    (tmp_path / "other").mkdir()
    other = make_forge(tmp_path / "other")
    laid(forge, (message("V-01", depends=["F-01"]), {"README": b"x\n"}))
    assert [what for what, _ in whats(forge)] == ["depends on a patch that is not before it"]
    laid(other, (message("F-01"), {"README": b"x\n"}))
    elsewhere = replace(other.place, name="other")
    assert whats(forge, elsewhere) == []
    assert check.check([forge.place], beside=[elsewhere])[0].clean
    laid(other, (message("V-01"), {"README": b"x\n"}))
    assert ("one id for two patches", "V-01 is also in other") in whats(forge, elsewhere)


def test_no_tree_recorded_and_another_tree_recorded(forge):
    laid(forge, *TWO, recorded=False)
    assert [what for what, _ in whats(forge)] == ["no tree is recorded"]
    (forge.place.folder / "tree").write_text("0" * 40 + "\n")
    assert [what for what, _ in whats(forge)] == ["another tree is recorded"]


def test_bytes_that_an_export_would_not_write(forge):
    loaded = laid(forge, *TWO)
    first = loaded.patches[0]
    for raw in (first.raw + b"-- \n2.39.5\n", first.raw.replace(b"[PATCH]", b"[PATCH 1/2]")):
        forge.write([Patch(first.name, raw), loaded.patches[1]], loaded.recorded)
        assert [what for what, _ in whats(forge)] == ["not canonical"]


def test_a_name_that_an_export_would_not_give(forge):
    loaded = laid(forge, *TWO)
    forge.write([Patch("0001-other.patch", loaded.patches[0].raw), loaded.patches[1]], loaded.recorded)
    ((what, why),) = whats(forge)
    assert (what, why) == ("not canonical", "an export names it 0001-numbers-change-two.patch")


def test_an_offset_is_an_error_though_git_applies_it(forge):
    loaded = laid(forge, TWO[0])
    raw = loaded.patches[0].raw.replace(b"@@ -1,5 +1,5 @@", b"@@ -3,5 +3,5 @@")
    assert raw != loaded.patches[0].raw
    forge.write([Patch(loaded.patches[0].name, raw)], loaded.recorded)
    assert "applies at an offset" in [what for what, _ in whats(forge)]


def test_order_that_is_wrong_is_a_fault_and_no_exception(forge):
    laid(forge, *TWO)
    (forge.place.folder / "series").write_text("0001-numbers-change-two.patch\n")
    ((what, _),) = whats(forge)
    assert "0002-code-add-a-file.patch is not listed" in what


def test_a_stray_file(forge):
    laid(forge, *TWO)
    (forge.place.folder / "notes.orig").write_text("")
    assert [what for what, _ in whats(forge)] == ["not part of a series"]
