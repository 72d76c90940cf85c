from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patch_forge import NUMBERS, changed_numbers, make_forge, message

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.patches import series, walk
from sparkforge.patches.series import Patch
from sparkforge.patches.walk import formatted


def test_all_at_once_and_one_by_one_reach_one_tree_with_the_mails_own_author_and_date(forge):
    patches = forge.patches(
        (message("V-01", "numbers: change two"), {"pkg/numbers.txt": changed_numbers(2)}),
        (message("V-02", "code: add [a] file"), {"pkg/new.py": b"x = 1\n", "README": None}),
    )
    loaded = forge.write(patches)
    steps = walk.commits(forge.git, forge.commit, loaded)
    assert walk.tree(forge.git, forge.place.tree, loaded) == steps[-1].tree
    told = forge.git.text("show", "-s", "--format=%an|%ae|%aI|%s|%cn|%cI", steps[1].commit)
    assert told == (
        "Jürgen Maintainer|maintainers@sparkforge.invalid|2025-09-01T12:00:00+02:00|code: add [a] file"
        "|Sparkforge|1970-01-01T00:00:00+00:00"
    )
    assert walk.commits(forge.git, forge.commit, loaded) == steps
    assert formatted(forge.git, forge.commit, steps[-1].commit) == patches


def test_commits_are_those_of_plumbing(forge):
    changes = [
        (message("V-01", "numbers: change two"), {"pkg/numbers.txt": changed_numbers(2)}),
        (message("V-02", "all: odd names"), {'a "b" \\c.txt': b"1\n", "ümlaut": b"\xff\n", "README": None}),
        (message("V-03", "data: other"), {"data/blob.bin": b"\0\1"}),
    ]
    head, made = forge.commit, []
    for text, change in changes:
        head = forge.made(head, change, text)
        made.append(head)
    loaded = forge.write(formatted(forge.git, forge.commit, head))
    assert [step.commit for step in walk.commits(forge.git, forge.commit, loaded)] == made


@pytest.mark.parametrize(("old", "new"), [(b"pkg/fresh.txt", b"pkg/numbers.txt/fresh.txt"), (b"pkg/fresh.txt", b"pkg")])
def test_a_file_where_a_folder_is_and_a_folder_where_a_file_is_do_not_apply(forge, old, new):
    (patch,) = forge.patches((message(), {"pkg/fresh.txt": b"x\n"}))
    loaded = forge.write([Patch(patch.name, patch.raw.replace(old, new))])
    for act in (walk.tree, walk.commits):
        with pytest.raises(CheckFailed, match="does not apply"):
            act(forge.git, forge.commit, loaded)


def test_the_same_pin_and_series_are_the_same_commits_in_another_repository(forge, tmp_path):
    (tmp_path / "other").mkdir()
    other = make_forge(tmp_path / "other")
    made = [
        walk.commits(at.git, at.commit, at.write(at.patches((message(), {"pkg/numbers.txt": changed_numbers(9)}))))
        for at in (forge, other)
    ]
    assert made[0] == made[1]


def test_a_moved_file_made_anew_at_its_old_place_gives_the_right_tree(forge):
    # The trap of one stream: the first patch moves numbers.txt away, the second makes another at the old place.
    patches = forge.patches(
        (message("V-01"), {"pkg/numbers.txt": None, "pkg/moved.txt": NUMBERS}),
        (message("V-02"), {"pkg/numbers.txt": NUMBERS.replace(b"line 4\n", b"four\n")}),
    )
    loaded = forge.write(patches)
    reached = walk.tree(forge.git, forge.place.tree, loaded)
    assert forge.git.run("cat-file", "blob", f"{reached}:pkg/moved.txt") == NUMBERS
    assert b"four\n" in forge.git.run("cat-file", "blob", f"{reached}:pkg/numbers.txt")


def test_binary_content_travels_with_its_data(forge):
    loaded = forge.write(forge.patches((message(), {"data/blob.bin": bytes(range(255, -1, -1))})))
    reached = walk.tree(forge.git, forge.place.tree, loaded)
    assert forge.git.run("cat-file", "blob", f"{reached}:data/blob.bin") == bytes(range(255, -1, -1))


def test_an_empty_series_is_the_pin_itself(forge):
    loaded = forge.write(())
    assert walk.tree(forge.git, forge.place.tree, loaded) == forge.place.tree
    assert walk.commits(forge.git, forge.commit, loaded) == ()


def test_a_patch_that_does_not_apply_is_named_with_file_and_hunk(forge):
    patches = forge.patches(
        (message("V-01"), {"pkg/numbers.txt": changed_numbers(5)}),
        (message("V-02", "core: another"), {"pkg/numbers.txt": changed_numbers(5, word="again")}),
    )
    loaded = forge.write(patches).only([patches[1].name])
    for act in (walk.tree, walk.commits):
        with pytest.raises(CheckFailed, match=r"0002-core-another.patch does not apply") as told:
            act(forge.git, forge.commit, loaded)
        assert "pkg/numbers.txt, hunk 1 of 1" in told.value.why


def test_nothing_but_objects_is_written(forge):
    loaded = forge.write(forge.patches((message(), {"README": b"new\n"})))
    walk.tree(forge.git, forge.place.tree, loaded)
    walk.commits(forge.git, forge.commit, loaded)
    assert not (forge.git.git_dir / "index").exists()
    assert forge.git.text("for-each-ref") == ""


def test_the_hash_of_a_series_counts_order_and_bytes_and_no_comment(forge):
    patches = forge.patches(
        (message("V-01"), {"README": b"a\n"}),
        (message("V-02"), {"pkg/code.py": b"pass\n"}),
    )
    one = forge.write(patches).sha256
    (forge.place.folder / "series").write_text(f"{patches[0].name}  # why\n\n{patches[1].name}\n")
    assert series.load(forge.place.folder).sha256 == one
    assert forge.write(patches[::-1]).sha256 != one


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0001-core-change-a-thing.patch\n0001-core-change-a-thing.patch\n", "is listed 2 times"),
        ("", "is not listed"),
        ("0001-core-change-a-thing.patch\n0002-gone.patch\n", "is listed but missing"),
        ("../demo/0001-core-change-a-thing.patch\n", "is not the name of a patch file"),
    ],
)
def test_order_and_folder_must_agree(forge, text, said):
    forge.write(forge.patches((message(), {"README": b"new\n"})))
    (forge.place.folder / "series").write_text(text)
    with pytest.raises(BadInput, match=said):
        series.load(forge.place.folder)


def test_a_folder_without_an_order_is_no_series(tmp_path):
    with pytest.raises(BadInput, match="has no series"):
        series.load(tmp_path)


PATHS = ("a.txt", "b.txt", "d/a.txt", "d/e/f.txt", "with blank.txt", "ümlaut.txt")
CONTENTS = st.lists(st.sampled_from(["one", "two", "three", "", "  four", "--- a/x", "diff", "-- "]), max_size=12).map(
    lambda lines: "\n".join(lines).encode()
)
# A file in a folder's place, and a folder in a file's, cannot happen with these paths.
CHANGES = st.dictionaries(st.sampled_from(PATHS), st.none() | CONTENTS, min_size=1, max_size=3)


@settings(max_examples=25, deadline=None, database=None)
@given(base=st.dictionaries(st.sampled_from(PATHS), CONTENTS, min_size=1), changes=st.lists(CHANGES, max_size=4))
def test_tree_and_commits_agree_with_each_other_and_with_the_truth(base, changes):
    with tempfile.TemporaryDirectory() as folder:
        forge = make_forge(Path(folder), base)
        head, files, count = forge.commit, dict(base), 0
        for change in changes:
            effective = {path: data for path, data in change.items() if files.get(path) != data}
            if not effective:
                continue
            for path, data in effective.items():
                if data is None:
                    del files[path]
                else:
                    files[path] = data
            count += 1
            head = forge.made(head, effective, message(f"V-{count:02}", f"core: change {count}"))
        patches = formatted(forge.git, forge.commit, head)
        assert len(patches) == count
        loaded = forge.write(patches)
        reached = walk.tree(forge.git, forge.place.tree, loaded)
        steps = walk.commits(forge.git, forge.commit, loaded)
        assert reached == forge.git.text("rev-parse", f"{head}^{{tree}}")
        assert reached == (steps[-1].tree if steps else forge.place.tree)
        assert formatted(forge.git, forge.commit, steps[-1].commit if steps else forge.commit) == patches
