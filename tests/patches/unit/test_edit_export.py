"""From a series to a work tree and back."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime

import pytest
from patch_forge import NUMBERS, changed_numbers, message

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.patches import check, series, walk
from sparkforge.patches.edit import edit, new
from sparkforge.patches.export import export
from sparkforge.patches.series import Patch


@pytest.fixture
def laid(forge):
    """Three patches, one in two files, with their tree; `# why` stands above the second."""
    patches = forge.patches(
        (message("V-01", "numbers: change two"), {"pkg/numbers.txt": changed_numbers(2, 25)}),
        (message("V-02", "code: add a file"), {"pkg/new.py": b"x = 1\n", "README": b"new\n"}),
        (message("V-03", "code: one is zero"), {"pkg/code.py": b"def one():\n    return 0\n"}),
    )
    forge.test_file()
    loaded = forge.write(patches)
    forge.write(patches, walk.tree(forge.git, forge.place.tree, loaded))
    (forge.place.folder / "series").write_text(
        f"# top\n{patches[0].name}\n# why\n{patches[1].name}\n{patches[2].name}\n# end\n"
    )
    return forge


def shell(tree, *words, stdin=None):
    """A person's git: their own identity and settings, one of which mangles line ends."""
    env = {"PATH": os.environ["PATH"], "HOME": str(tree.path.parent), "GIT_EDITOR": "true"}
    (tree.path.parent / ".gitconfig").write_text("[user]\nname=Somebody\nemail=s@example.org\n[core]\nautocrlf=input\n")
    subprocess.run(["git", *words], cwd=tree.path, env=env, check=True, input=stdin, capture_output=True)


def bytes_of(forge):
    return {path.name: path.read_bytes() for path in forge.place.folder.iterdir()}


def amend(tree, number, change):
    """Change files in the patch that is `number` commits below the head."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tree.path, capture_output=True, check=True).stdout
    shell(tree, "checkout", "-q", f"HEAD~{number}")
    for path, data in change.items():
        (tree.path / path).unlink() if data is None else (tree.path / path).write_bytes(data)
    shell(tree, "add", "-A")
    shell(tree, "commit", "-q", "--amend", "--no-edit")
    for commit in range(number, 0, -1):
        shell(tree, "cherry-pick", f"{head.decode().strip()}~{commit - 1}")
    shell(tree, "checkout", "-q", "-B", "series")


def test_there_and_back_changes_no_byte(laid):
    before = bytes_of(laid)
    tree = edit(laid.place)
    assert tree.path == laid.root / "build/edit/demo"
    assert (tree.path / "pkg/new.py").read_bytes() == b"x = 1\n"
    done = export(laid.place)
    assert bytes_of(laid) == before
    assert (done.written, done.removed, len(done.kept)) == ((), (), 3)


def test_an_amended_patch_is_written_and_the_others_keep_their_bytes(laid):
    before = bytes_of(laid)
    tree = edit(laid.place)
    amend(tree, 1, {"pkg/new.py": b"x = 2\n"})
    done = export(laid.place)
    assert done.written == ("0002-code-add-a-file.patch",)
    after = bytes_of(laid)
    assert {name for name in after if after[name] != before[name]} == {"tree", "0002-code-add-a-file.patch"}
    assert b"From: =?UTF-8?q?J=C3=BCrgen=20Maintainer?=" in after["0002-code-add-a-file.patch"]
    assert check.check([laid.place])[0].faults == ()
    assert export(laid.place).written == ()


def test_a_patch_that_was_not_canonical_and_not_touched_keeps_its_bytes(laid):
    loaded = series.load(laid.place.folder)
    odd = loaded.patches[0].raw + b"-- \n2.39.5\n"
    (laid.place.folder / loaded.patches[0].name).write_bytes(odd)
    tree = edit(laid.place)
    amend(tree, 0, {"pkg/code.py": b"def one():\n    return 5\n"})
    done = export(laid.place)
    assert done.written == (loaded.patches[2].name,)
    assert bytes_of(laid)[loaded.patches[0].name] == odd
    assert export(laid.place, refresh=True).written == (loaded.patches[0].name,)
    assert check.check([laid.place])[0].faults == ()


def test_comments_of_the_order_stay_with_their_patch(laid):
    tree = edit(laid.place)
    (tree.path / "pkg/more.py").write_text("y = 1\n")
    new(laid.place, feature="V-04", title="code: more")
    shell(tree, "commit", "-q", "--amend", "-F", "-", stdin=message("V-04", "code: more").encode())
    export(laid.place)
    assert (laid.place.folder / "series").read_text() == (
        "# top\n0001-numbers-change-two.patch\n# why\n0002-code-add-a-file.patch\n"
        "0003-code-one-is-zero.patch\n0004-code-more.patch\n# end\n"
    )
    assert check.check([laid.place])[0].faults == ()


def test_other_files_of_the_folder_stay_and_nothing_half_written_does(laid):
    (laid.place.folder / "README.md").write_text("about\n")
    left = laid.place.folder.parent / f".partial-{laid.place.folder.name}-killed"
    left.mkdir()
    tree = edit(laid.place)
    amend(tree, 0, {"pkg/code.py": b"def one():\n    return 5\n"})
    export(laid.place)
    assert (laid.place.folder / "README.md").read_text() == "about\n"
    assert [path.name for path in laid.place.folder.parent.iterdir()] == [laid.place.folder.name]


def test_a_first_series_from_nothing(forge):
    (forge.place.folder).mkdir(parents=True)
    (forge.place.folder / "series").write_text("# nothing yet\n")
    tree = edit(forge.place)
    (tree.path / "pkg/new.py").write_text("x = 1\n")
    new(forge.place, feature="V-01", title="code: new")
    done = export(forge.place)
    assert (done.written, series.load(forge.place.folder).recorded) == (("0001-code-new.patch",), done.tree)


def test_a_stale_patch_is_refreshed(laid):
    loaded = series.load(laid.place.folder)
    first = loaded.patches[0]
    raw = first.raw.replace(b"@@ -22,7 +22,7 @@", b"@@ -20,7 +20,7 @@")
    assert raw != first.raw
    (laid.place.folder / first.name).write_bytes(raw)
    assert "applies at an offset" in [fault.what for fault in check.check([laid.place])[0].faults]
    edit(laid.place)
    export(laid.place)
    assert bytes_of(laid)[first.name] == first.raw


@pytest.mark.parametrize(
    ("number", "change", "said"),
    [
        (
            2,
            {"pkg/numbers.txt": changed_numbers(2)},
            "0001-numbers-change-two.patch: pkg/numbers.txt: the hunk at line 22",
        ),
        (1, {"README": b"readme\nwithout a last line feed"}, "0002-code-add-a-file.patch: README is no longer changed"),
    ],
)
def test_a_lost_hunk_or_file_is_an_error_unless_said(laid, number, change, said):
    before = bytes_of(laid)
    tree = edit(laid.place)
    amend(tree, number, change)
    with pytest.raises(CheckFailed, match="would lose") as told:
        export(laid.place)
    assert said in told.value.why
    assert bytes_of(laid) == before
    assert export(laid.place, allow_loss=True).lost
    assert check.check([laid.place])[0].faults == ()


def test_a_lost_patch_is_an_error_unless_said(laid):
    tree = edit(laid.place)
    shell(tree, "reset", "-q", "--hard", "HEAD~1")
    with pytest.raises(CheckFailed, match="would lose") as told:
        export(laid.place)
    assert told.value.why == "0003-code-one-is-zero.patch: the patch is gone"
    assert export(laid.place, allow_loss=True).removed == ("0003-code-one-is-zero.patch",)


def test_an_edited_hunk_and_a_hunk_moved_to_another_patch_are_no_loss(laid):
    tree = edit(laid.place)
    amend(tree, 2, {"pkg/numbers.txt": changed_numbers(2, 25, word="edited")})
    assert export(laid.place).lost == ()
    amend(tree, 2, {"pkg/numbers.txt": changed_numbers(2, word="edited")})
    amend(tree, 1, {"pkg/numbers.txt": changed_numbers(2, 25, word="edited")})
    assert export(laid.place).lost == ()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["commit", "-q", "--allow-empty", "-m", "core: nothing"], "changes nothing"),
        (["commit", "-q", "--allow-empty", "-m", "fixup! core: x"], "unfinished commit"),
        (["reset", "-q", "--soft", "HEAD~1"], "uncommitted changes"),
        (["merge", "-q", "--no-ff", "-m", "merge", "side"], "has a merge"),
        (["checkout", "-q", "--orphan", "else"], "no commit checked out"),
    ],
)
def test_what_is_no_series_is_not_exported(laid, words, said):
    before = bytes_of(laid)
    tree = edit(laid.place)
    shell(tree, "checkout", "-q", "-b", "side", "HEAD~1")
    (tree.path / "side").write_text("x")
    shell(tree, "add", "-A")
    shell(tree, "commit", "-q", "-m", "side: x")
    shell(tree, "checkout", "-q", "series")
    shell(tree, *words)
    with pytest.raises(BadInput, match=said):
        export(laid.place)
    assert bytes_of(laid) == before


def test_a_history_of_its_own_is_not_exported(laid):
    tree = edit(laid.place)
    shell(tree, "checkout", "-q", "--orphan", "else")
    shell(tree, "commit", "-q", "-m", "all: at once")
    with pytest.raises(BadInput, match="is no longer based on its pin"):
        export(laid.place)


def test_new_files_that_nobody_added_are_seen(laid):
    tree = edit(laid.place)
    (tree.path / "pkg/forgotten.py").write_text("")
    with pytest.raises(BadInput, match="uncommitted changes") as told:
        export(laid.place)
    assert told.value.why == "pkg/forgotten.py"


def test_a_series_that_changed_meanwhile_is_not_overwritten(laid):
    edit(laid.place)
    loaded = series.load(laid.place.folder)
    laid.write(loaded.patches[:2])
    with pytest.raises(CheckFailed, match="changed since"):
        export(laid.place)


def test_a_work_tree_with_work_in_it_is_not_thrown_away(laid):
    tree = edit(laid.place)
    assert edit(laid.place) == tree
    (tree.path / "README").write_text("mine")
    with pytest.raises(BadInput, match="not exported"):
        edit(laid.place)
    assert (tree.path / "README").read_text() == "mine"


def test_a_folder_of_somebody_elses_is_not_touched(laid, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("mine")
    with pytest.raises(BadInput, match="was not made by"):
        edit(laid.place, tmp_path / "mine")
    with pytest.raises(BadInput, match="there is no work tree"):
        export(laid.place, tmp_path / "mine")


def test_what_does_not_apply_waits(laid):
    loaded = series.load(laid.place.folder)
    bad = Patch(loaded.patches[2].name, loaded.patches[2].raw.replace(b"-    return 1\n", b"-    return 7\n"))
    laid.write((*loaded.patches[:2], bad))
    tree = edit(laid.place)
    assert [patch.name for patch in tree.waiting] == [bad.name]
    with pytest.raises(CheckFailed, match="would lose"):
        export(laid.place)


def test_attributes_of_the_upstream_have_no_say(forge):
    forge.commit = forge.made(forge.commit, {".gitattributes": b"* text eol=crlf\n*.txt -diff\n*.py diff=python\n"})
    patches = forge.patches((message(), {"pkg/numbers.txt": changed_numbers(9)}))
    forge.test_file()
    forge.write(patches, walk.tree(forge.git, forge.place.tree, forge.write(patches)))
    tree = edit(forge.place)
    assert (tree.path / "pkg/numbers.txt").read_bytes() == changed_numbers(9)
    amend(tree, 0, {"pkg/numbers.txt": changed_numbers(9, word="other")})
    export(forge.place)
    assert b"+other 9\n" in bytes_of(forge)[patches[0].name]
    assert b"\r" not in bytes_of(forge)[patches[0].name]


def test_a_new_patch_from_what_is_uncommitted(laid):
    tree = edit(laid.place)
    with pytest.raises(BadInput, match="nothing is changed"):
        new(laid.place, feature="V-04", title="code: more")
    (tree.path / "pkg/more.py").write_text("y = 1\n")
    for feature, title, said in (
        ("V-03", "code: more", "is taken"),
        ("4", "code: more", "is not a patch id"),
        ("V-04", "more", "names no area"),
    ):
        with pytest.raises(BadInput, match=said):
            new(laid.place, feature=feature, title=title)
    begun = new(laid.place, feature="V-04", title="code: more & more", now=datetime(2025, 9, 1, tzinfo=UTC))
    assert (begun.paths, begun.test) == (("pkg/more.py",), "tests/patches/demo/test_v04_more_more.py")
    done = export(laid.place)
    assert done.written == ("0004-code-more-more.patch",)
    raw = bytes_of(laid)[done.written[0]]
    assert b"From: Sparkforge maintainers <maintainers@sparkforge.invalid>\nDate: Mon, 1 Sep 2025 00:00:00 +0000" in raw
    whats = [fault.what for fault in check.check([laid.place])[0].faults]
    assert whats == ["no intent", "no test"]


def test_numbers_are_what_the_forge_says(forge):
    assert len(NUMBERS.splitlines()) == 30
