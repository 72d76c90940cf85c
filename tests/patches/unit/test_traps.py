"""Every trap by name, each with a patch that falls into it."""

from __future__ import annotations

import pytest
from patch_forge import NUMBERS, changed_numbers, message

from sparkforge.core.errors import BadInput
from sparkforge.patches import check, stale, traps, walk
from sparkforge.patches.mail import read
from sparkforge.patches.series import Patch
from sparkforge.patches.traps import Trap


@pytest.fixture
def patch(forge):
    return forge.patches((message(), {"pkg/numbers.txt": changed_numbers(15)}))[0]


def whats(faults):
    return [fault.what for fault in faults]


def test_a_sound_patch_holds_none(patch):
    assert traps.faults(patch.name, patch.raw) == []


@pytest.mark.parametrize(
    ("old", "new", "trap"),
    [
        (b"+++ b/pkg/numbers.txt", b"+++ b/pkg/code.py", Trap.NAMES_DISAGREE),
        (b"--- a/pkg/numbers.txt", b"--- a/pkg/code.py", Trap.NAMES_DISAGREE),
        (b"--- a/pkg/numbers.txt", b"--- /dev/null", Trap.NAMES_DISAGREE),
        (b"diff --git a/pkg/numbers.txt", b"diff --git a/pkg/code.py", Trap.NAMES_DISAGREE),
        (b"\ndiff --git", b"\n--- a/README\n+++ b/README\n@@ -1 +1 @@\n-a\n+b\ndiff --git", Trap.NAMES_DISAGREE),
        (b"\nindex ", b"\nrename from pkg/code.py\nrename to pkg/numbers.txt\nindex ", Trap.RENAME),
        (b"pkg/numbers.txt", b"../numbers.txt", Trap.OUTSIDE),
        (b"pkg/numbers.txt", b"/etc/numbers.txt", Trap.OUTSIDE),
        (b"pkg/numbers.txt", b"pkg/../../numbers.txt", Trap.OUTSIDE),
        (b"pkg/numbers.txt", b".git/config", Trap.OUTSIDE),
        (b"\nindex ", b"\nnew mode 120000\nindex ", Trap.NOT_A_FILE),
    ],
)
def test_headers(forge, patch, old, new, trap):
    raw = patch.raw.replace(old, new)
    assert raw != patch.raw
    assert trap.value in whats(traps.faults(patch.name, raw))
    # and neither a tree nor a commit is made of it
    loaded = forge.write([Patch(patch.name, raw)])
    for act in (walk.tree, walk.commits):
        with pytest.raises(BadInput, match=trap.value):
            act(forge.git, forge.commit, loaded)


def test_carriage_returns(patch):
    raw = patch.raw.replace(b"\n", b"\r\n")
    assert whats(traps.faults(patch.name, raw)) == [Trap.CRLF.value]
    one = patch.raw.replace(b"+changed 15\n", b"+changed 15\r\n")
    assert whats(traps.faults(patch.name, one)) == [Trap.CRLF.value]


def test_a_binary_section_without_its_data(forge):
    (patch,) = forge.patches((message(), {"data/blob.bin": b"\0new"}))
    assert traps.faults(patch.name, patch.raw) == []
    begin = patch.raw.index(b"GIT binary patch")
    raw = patch.raw[:begin] + b"Binary files a/data/blob.bin and b/data/blob.bin differ\n"
    assert whats(traps.faults(patch.name, raw)) == [Trap.BINARY_WITHOUT_DATA.value]


def test_a_patch_that_changes_nothing_by_its_bytes(patch):
    raw = patch.raw[: patch.raw.index(b"--- a/pkg")]
    assert whats(traps.faults(patch.name, raw)) == [Trap.CHANGES_NOTHING.value]


def test_a_patch_that_changes_nothing_in_the_tree(forge, patch):
    raw = patch.raw.replace(b"+changed 15\n", b"+line 15\n")
    forge.write([Patch(patch.name, raw)])
    forge.test_file()
    (report,) = check.check([forge.place])
    assert Trap.CHANGES_NOTHING.value in whats(report.faults)


def test_one_file_in_two_sections(patch):
    raw = patch.raw + patch.raw[patch.raw.index(b"diff --git") :]
    assert whats(traps.faults(patch.name, raw)) == [Trap.FILE_TWICE.value]


def test_no_diff_at_all(patch):
    raw = patch.raw[: patch.raw.index(b"diff --git")]
    assert whats(traps.faults(patch.name, raw)) == [Trap.NO_DIFF.value]


def test_a_second_file_without_its_git_line(forge, patch):
    raw = patch.raw + b"--- a/README\n+++ b/README\n@@ -1 +1 @@\n-readme\n+other\n"
    with pytest.raises(BadInput, match="without a `diff --git` line"):
        _ = read(forge.git, patch.name, raw).sections[0].hunks


def test_a_hunk_that_lost_a_line(forge, patch):
    raw = patch.raw.replace(b" line 18\n", b"")
    with pytest.raises(BadInput, match="has another length than it says"):
        _ = read(forge.git, patch.name, raw).sections[0].hunks


def stale_of(forge, patch, files):
    tree = forge.made(forge.commit, files)
    return stale.faults(forge.git, [(read(forge.git, patch.name, patch.raw), tree)])


def test_exact_is_no_fault(forge, patch):
    assert stale_of(forge, patch, {"README": b"other\n"}) == []


def test_an_offset_is_found_and_counted(forge, patch):
    (fault,) = stale_of(forge, patch, {"pkg/numbers.txt": b"one\ntwo\n" + NUMBERS})
    assert (fault.what, "found at line 14 (+2)" in fault.why) == (Trap.OFFSET.value, True)


def test_fuzz_is_found(forge, patch):
    moved = NUMBERS.replace(b"line 12\n", b"context changed\n")
    (fault,) = stale_of(forge, patch, {"pkg/numbers.txt": moved})
    assert fault.what == Trap.FUZZ.value


def test_lines_that_are_nowhere(forge, patch):
    (fault,) = stale_of(forge, patch, {"pkg/numbers.txt": b"nothing\n"})
    assert fault.what == Trap.NO_PLACE.value


def test_an_end_of_file_that_went_on_is_fuzz(forge):
    (patch,) = forge.patches((message(), {"pkg/numbers.txt": changed_numbers(29)}))
    (fault,) = stale_of(forge, patch, {"pkg/numbers.txt": NUMBERS + b"line 31\n"})
    assert fault.what == Trap.FUZZ.value


def test_a_last_line_without_line_feed_is_compared_too(forge):
    (patch,) = forge.patches((message(), {"README": b"readme\nwith one\n"}))
    assert stale_of(forge, patch, {"pkg/code.py": b""}) == []
    (fault,) = stale_of(forge, patch, {"README": b"readme\nwithout a last line feed\n"})
    assert fault.what in {Trap.FUZZ.value, Trap.NO_PLACE.value}


def test_a_moved_file_with_the_same_content(forge, patch):
    (fault,) = stale_of(forge, patch, {"pkg/numbers.txt": None, "elsewhere/digits.txt": NUMBERS})
    assert fault.what == Trap.FILE_MOVED.value
    assert fault.why.endswith("elsewhere/digits.txt has the same content")


def test_a_moved_file_with_the_same_name_and_other_content(forge, patch):
    files = {"pkg/numbers.txt": None, "new/numbers.txt": NUMBERS + b"more\n", "old/numbers.txt": b"none\n"}
    (fault,) = stale_of(forge, patch, files)
    assert "new/numbers.txt (1 of 1 hunks fit), old/numbers.txt (0 of 1 hunks fit)" in fault.why


def test_a_file_that_went(forge, patch):
    (fault,) = stale_of(forge, patch, {"pkg/numbers.txt": None})
    assert "nor a file of that name or content" in fault.why


def test_a_new_file_that_is_there_already(forge):
    (patch,) = forge.patches((message(), {"pkg/new.py": b"x = 1\n"}))
    (fault,) = stale_of(forge, patch, {"pkg/new.py": b"y = 1\n"})
    assert fault.what == Trap.FILE_THERE.value
