"""Quilt series that nobody here wrote: what patch(1) takes is read and reported, what is ambiguous is an error."""

from __future__ import annotations

import tarfile

import pytest
from patch_forge import BASE, NUMBERS, changed_numbers

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.git.objects import contents
from sparkforge.patches.rebase.carry import of_series
from sparkforge.patches.rebase.foreign import read
from sparkforge.patches.rebase.outcome import Outcome
from sparkforge.patches.rebase.trees import imported

HUNK = "@@ -1,5 +1,5 @@\n line 1\n-line 2\n+changed 2\n line 3\n line 4\n line 5\n"
OLD, NEW = "a/pkg/numbers.txt", "b/pkg/numbers.txt"


def plain(old=OLD, new=NEW, hunk=HUNK, before=""):
    return f"{before}--- {old}\n+++ {new}\n{hunk}"


def laid(folder, files):
    for path, data in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    return folder


@pytest.fixture
def series(tmp_path):
    """Writes a series of texts, each with the words after its name in the order file."""

    def write(*patches):
        folder = tmp_path / "quilt"
        folder.mkdir(exist_ok=True)
        lines = []
        for number, (text, words) in enumerate(patches, 1):
            (folder / f"{number}.patch").write_bytes(text if isinstance(text, bytes) else text.encode())
            lines.append(f"{number}.patch{words}\n")
        (folder / "series").write_text("# a comment\n\n" + "".join(lines))
        return folder

    return write


def judged(store, tmp_path, folder, change):
    old = laid(tmp_path / "old", BASE)
    new = laid(tmp_path / "new", {**BASE, **change})
    return of_series(store, folder, old, new)


def only(forge, folder):
    return read(folder, forge.git, forge.commit)[0]


ODD = {
    "plain": (plain(), "", "no `diff --git` line"),
    "index": (plain(before="Index: demo/pkg/numbers.txt\n" + "=" * 60 + "\n"), "", "an `Index:` line"),
    "level 0": (plain("pkg/numbers.txt", "pkg/numbers.txt"), " -p0", "-p0"),
    "dot": (plain("./pkg/numbers.txt", "./pkg/numbers.txt"), " -p0", "-p0"),
    "level 2": (plain("x/y/pkg/numbers.txt", "x/z/pkg/numbers.txt"), " -p2", "-p2"),
    "stamps": (plain(f"{OLD}\t2024-01-01 10:00:00.000 +0000", f"{NEW}\t2024-01-02 10:00:00.000 +0000"), "", "no `diff"),
    "other prefixes": (plain("demo-1.0.orig/pkg/numbers.txt", "demo-1.0/pkg/numbers.txt"), " # why", "no `diff"),
    "prose": ("Description: two is changed\n because\n---\n" + plain() + "-- \n2.39\n", "", "no `diff"),
    "offset": (plain(hunk=HUNK.replace("@@ -1,5 +1,5 @@", "@@ -4,5 +4,5 @@")), "", "1 hunks are at an offset"),
    "mnemonic": (
        "diff --git i/pkg/numbers.txt w/pkg/numbers.txt\n" + plain("i/pkg/numbers.txt", "w/pkg/numbers.txt"),
        "",
        "",
    ),
}


@pytest.mark.parametrize("kind", ODD)
def test_what_patch_takes_is_taken_and_reported(forge, series, kind):
    text, words, remark = ODD[kind]
    item = only(forge, series((text, words)))
    assert item.paths == {"pkg/numbers.txt"}
    assert any(one.startswith(remark) for one in item.remarks) or not remark


def test_the_title_is_the_description(forge, series):
    assert only(forge, series((ODD["prose"][0], ""))).title == "two is changed"


def test_an_empty_context_line_without_its_blank_is_mended(forge, series):
    hunk = "@@ -1,6 +1,6 @@\n def one():\n-    return 1\n+    return 7\n\n\n def two():\n     return 2\n"
    item = only(forge, series((plain("a/pkg/code.py", "b/pkg/code.py", hunk), "")))
    assert "an empty context line without its blank" in item.remarks
    assert b"\n \n \n def two" in item.raw


def test_a_removed_line_that_looks_like_a_header_stays_a_line(store, tmp_path, series):
    """`--- x` within a hunk is the removed line `-- x`; only the numbers of the hunk tell."""
    forge_files = {"notes": b"one\n-- two\n++ three\nfour\n"}
    old, new = laid(tmp_path / "o", forge_files), laid(tmp_path / "n", forge_files)
    hunk = "@@ -1,4 +1,4 @@\n one\n--- two\n+++ 2\n ++ three\n four\n"
    report = of_series(store, series((plain("a/notes", "b/notes", hunk), "")), old, new)
    assert report.verdicts[0].outcome is Outcome.CLEAN


ERRORS = {
    "file names that disagree": [
        plain("a/pkg/numbers.txt.orig", NEW),
        "diff --git a/pkg/code.py b/pkg/code.py\n" + plain(),
        "diff --git a/pkg/code.py b/pkg/kode.py\nold mode 100644\nnew mode 100755\n",
    ],
    "a binary section without data": [
        "diff --git a/data/b.bin b/data/b.bin\nindex 1..2 100644\nBinary files a/data/b.bin and b/data/b.bin differ\n",
        plain() + "Binary files data/blob.bin and data2/blob.bin differ\n",
    ],
    "a path outside the tree": [plain("a/../x", "b/../x"), plain("numbers.txt", "numbers.txt")],
    "a rename": ["diff --git a/README b/R\nsimilarity index 100%\nrename from README\nrename to R\n"],
    "a hunk does not hold the lines that it says": [plain(hunk=HUNK.replace("-1,5 +1,5", "-1,9 +1,9"))],
    "a hunk holds more lines than it says": [plain(hunk="@@ -1,2 +1,1 @@\n line 1\n+more\n-line 2\n")],
}


@pytest.mark.parametrize(("what", "text"), [(what, text) for what, texts in ERRORS.items() for text in texts])
def test_what_can_be_read_in_two_ways_is_an_error_by_name(forge, series, what, text):
    with pytest.raises(BadInput) as bad:
        only(forge, series((text, "")))
    assert bad.value.what == f"1.patch: {what}"


def test_a_file_that_is_made_and_one_that_goes(store, tmp_path, series):
    new = "@@ -0,0 +1,2 @@\n+x = 1\n+y = 2\n"
    gone = "@@ -1,3 +0,0 @@\n-one\n-two\n-three\n"
    folder = series(
        (plain("a/pkg/made.py\t1970-01-01 00:00:00 +0000", "b/pkg/made.py", new), ""),
        (plain("/dev/null", "b/pkg/also.py", new), ""),
        (plain("a/extra", "/dev/null", gone), ""),
        (plain("a/pkg/made.py", "b/pkg/made.py", "@@ -1,2 +1,2 @@\n-x = 1\n+x = 3\n y = 2\n"), ""),
    )
    files = {**BASE, "extra": b"one\ntwo\nthree\n"}
    report = of_series(store, folder, laid(tmp_path / "old", files), laid(tmp_path / "new", files))
    assert {one.outcome for one in report.verdicts} == {Outcome.CLEAN}
    from sparkforge.git.of_store import git_of  # noqa: PLC0415

    names = [f"{report.tree}:{path}" for path in ("pkg/made.py", "pkg/also.py", "extra")]
    assert list(contents(git_of(store), names).values()) == [b"x = 3\ny = 2\n", b"x = 1\ny = 2\n", None]


def test_a_patch_without_a_diff_is_empty(store, tmp_path, series):
    report = judged(store, tmp_path, series(("only prose\n", ""), (plain(), "")), {})
    assert [one.outcome for one in report.verdicts] == [Outcome.EMPTY, Outcome.CLEAN]
    assert report.verdicts[0].remarks == ("it changes nothing",)


def test_verdicts_are_those_of_any_series(store, tmp_path, series):
    change = {"pkg/numbers.txt": changed_numbers(2, word="upstream")}
    report = judged(store, tmp_path, series((plain(), "")), change)
    assert report.verdicts[0].outcome is Outcome.CONFLICT
    assert "upstream 2" in report.verdicts[0].conflicts[0].instead
    assert judged(store, tmp_path, series((plain(), "")), TAKEN).verdicts[0].outcome is Outcome.UPSTREAMED


TAKEN = {"pkg/numbers.txt": changed_numbers(2)}


def test_a_patch_that_does_not_fit_its_own_tree(store, tmp_path, series):
    with pytest.raises(CheckFailed, match=r"2\.patch does not apply to the tree"):
        judged(store, tmp_path, series((plain(), ""), (plain(), "")), {})


def test_a_folder_without_a_series_and_a_patch_that_is_not_there(forge, tmp_path, series):
    with pytest.raises(BadInput, match="holds no series"):
        read(tmp_path, forge.git, forge.commit)
    folder = series((plain(), ""))
    (folder / "1.patch").unlink()
    with pytest.raises(BadInput, match=r"1.patch is listed and not there"):
        read(folder, forge.git, forge.commit)
    (folder / "series").write_text("# nothing\n")
    with pytest.raises(BadInput, match="lists no patch"):
        read(folder, forge.git, forge.commit)


def test_a_folder_and_an_archive_are_the_same_tree(forge, tmp_path):
    top = laid(tmp_path / "demo-1.0", {**BASE, "tool.sh": b"#!/bin/sh\n"})
    (top / "tool.sh").chmod(0o755)
    (top / "link").symlink_to("README")
    laid(top, {".pc/applied": b"x", ".git/HEAD": b"ref: refs/heads/x\n"})
    with tarfile.open(tmp_path / "demo.tar.xz", "w:xz") as tar:
        tar.add(top, "demo-1.0")
    commits = [imported(forge.git, place) for place in (top, tmp_path / "demo.tar.xz")]
    assert commits[0] == commits[1]
    said = forge.git.text("ls-tree", "-r", commits[0])
    assert "100755" in said
    assert "120000" in said
    assert ".pc" not in said


def test_what_is_no_tree(forge, tmp_path):
    (tmp_path / "text").write_text("no archive")
    (tmp_path / "empty").mkdir()
    for name, what in (
        ("nothing", "is not there"),
        ("text", "no archive that tar can read"),
        ("empty", "holds no file"),
    ):
        with pytest.raises(BadInput, match=what):
            imported(forge.git, tmp_path / name)


def test_the_numbers_that_the_series_changes_are_those_of_the_base():
    assert NUMBERS.startswith(b"line 1\nline 2\n")
