"""A series moved to another release: kept bytes, stops for a person, going on, giving up, and the stack made of it."""

from __future__ import annotations

import os
import subprocess

import msgspec
import pytest
from patch_demo import CODE, RELEASES
from patch_forge import NUMBERS, Forge, changed_numbers, message

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.git.of_store import git_of
from sparkforge.inputs import recipes
from sparkforge.inputs.recipes import load_stack
from sparkforge.patches import check, series
from sparkforge.patches.place import place
from sparkforge.patches.rebase import finish, move
from sparkforge.patches.rebase.work import State


@pytest.fixture
def stack(upstream, tmp_path, monkeypatch):
    """The stack as a file of its own."""
    stacks = tmp_path / "stacks"
    stacks.mkdir()
    for module in (recipes, move):
        monkeypatch.setattr(module, "STACKS", stacks)
    old = msgspec.structs.replace(upstream, name="old")
    return finish.stack(old, "demo", upstream.upstreams["demo"], stacks / "old.yaml")


def begin(stack, store, tmp_path, release, *accepted):
    return move.begin(stack, store, {"demo": release}, frozenset(accepted), name="new", root=tmp_path)


def resume(store, tmp_path, *accepted):
    return move.resume(store, "demo", frozenset(accepted), root=tmp_path)


def replace_series(stack, store, tmp_path, *changes):
    """Other patches than the fixture's two."""
    forge = Forge(git_of(store), tmp_path, place(stack, store, "demo").commit)
    folder = tmp_path / "series/demo/1.0"
    for old in folder.iterdir():
        old.unlink()
    patches = forge.patches(*changes)
    for patch in patches:
        (folder / patch.name).write_bytes(patch.raw)
    (folder / "series").write_text("".join(f"# above {p.name[:4]}\n{p.name}\n" for p in patches))


def letter(number, **words):
    return message(f"D-{number:02}", f"numbers: change {number}", drop="exists never", **words)


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.patch")}


def git(path, *words):
    env = {"PATH": os.environ["PATH"], "HOME": str(path.parent)}
    return subprocess.run(["git", *words], cwd=path, env=env, check=True, capture_output=True).stdout.decode()


def test_a_series_that_fits_is_written_at_once_and_keeps_its_bytes(stack, store, tmp_path):
    before = bytes_of(tmp_path / "series/demo/1.0")
    done = begin(stack, store, tmp_path, "1.1")
    assert (done.stopped, done.path.exists()) == ("", False)
    assert bytes_of(tmp_path / "series/demo/1.1") == before
    assert (len(done.written.kept), done.written.changed, done.written.dropped) == (2, (), ())
    assert b"index " in before["0001-numbers-change-two.patch"]


def test_the_new_series_passes_the_check_and_leads_to_the_recorded_tree(stack, store, tmp_path):
    begin(stack, store, tmp_path, "1.1")
    (tmp_path / "tests/patches/demo").mkdir(parents=True)
    (tmp_path / "tests/patches/demo/test_it.py").write_text("def test_it(): assert 1\n")
    new = load_stack("new")
    at = place(new, store, "demo")
    at = type(at)(at.name, at.git, at.commit, at.tree, tmp_path / "series/demo/1.1", tmp_path)
    (report,) = check.check([at])
    assert report.faults == ()


def test_the_new_stack_pins_every_file_by_hash_and_the_old_one_stays(stack, store, tmp_path, local_index):
    before = (tmp_path / "stacks/old.yaml").read_bytes()
    begin(stack, store, tmp_path, "1.1")
    new = load_stack("new").upstreams["demo"]
    assert (new.release, new.commit, new.sdist.name) == ("1.1", "unpinned", "demo-1.1.tar.gz")
    assert {file.name for file in new.wheels.values()} == {"demo-1.1-py3-none-any.whl"}
    assert new.series.endswith("series/demo/1.1")
    assert (tmp_path / "stacks/old.yaml").read_bytes() == before


def test_a_conflict_stops_it_with_markers_and_goes_on_when_settled(stack, store, tmp_path):
    stopped = begin(stack, store, tmp_path, "1.3")
    assert stopped.stopped.startswith("D-01 does not fit")
    file = stopped.path / "pkg/numbers.txt"
    assert b"<<<<<<< " in file.read_bytes()
    assert b"||||||| " in file.read_bytes()
    assert not (tmp_path / "series/demo/1.3").exists()
    with pytest.raises(BadInput, match="D-01 is not settled"):
        resume(store, tmp_path)
    file.write_bytes(b"first\n" + changed_numbers(2, word="settled"))
    done = resume(store, tmp_path)
    assert done.stopped == ""
    assert done.written.changed == ("0001-numbers-change-two.patch",)
    assert done.written.kept == ("0002-code-three-is-four.patch",)
    loaded = series.load(tmp_path / "series/demo/1.3")
    raw = loaded.patches[0].raw
    assert b"-upstream 2\n+settled 2\n" in raw
    assert b"Feature: D-01" in raw
    assert "Jürgen" in loaded.mails(git_of(store))[0].author


def test_a_commit_of_a_person_counts_as_the_patch(stack, store, tmp_path):
    stopped = begin(stack, store, tmp_path, "1.3")
    (stopped.path / "pkg/numbers.txt").write_bytes(b"first\n" + changed_numbers(2, word="settled"))
    git(stopped.path, "commit", "-q", "-a", "-m", "mine")
    assert resume(store, tmp_path).stopped == ""
    assert b"Subject: [PATCH] numbers: change two" in series.load(tmp_path / "series/demo/1.3").patches[0].raw


def test_two_commits_for_one_patch_are_refused(stack, store, tmp_path):
    stopped = begin(stack, store, tmp_path, "1.3")
    (stopped.path / "pkg/numbers.txt").write_bytes(b"first\n" + changed_numbers(2, word="settled"))
    git(stopped.path, "commit", "-q", "-a", "-m", "mine")
    git(stopped.path, "commit", "-q", "--allow-empty", "-m", "another")
    with pytest.raises(BadInput, match="more commits than the one for D-01"):
        resume(store, tmp_path)


def test_a_conflict_may_be_dropped_by_name(stack, store, tmp_path):
    begin(stack, store, tmp_path, "1.3")
    done = resume(store, tmp_path, "D-01")
    assert (done.written.dropped, done.written.kept) == (("D-01",), ("0001-code-three-is-four.patch",))


def test_what_was_settled_to_nothing_is_not_dropped_in_silence(stack, store, tmp_path):
    stopped = begin(stack, store, tmp_path, "1.3")
    (stopped.path / "pkg/numbers.txt").write_bytes(RELEASES["1.3"]["pkg/numbers.txt"])
    with pytest.raises(CheckFailed, match="nothing is left of D-01"):
        resume(store, tmp_path)


def test_the_only_rebase_under_way_needs_no_name(stack, store, tmp_path):
    with pytest.raises(BadInput, match="no upstream is named"):
        move.resume(store, root=tmp_path)
    begin(stack, store, tmp_path, "1.3")
    with pytest.raises(BadInput, match="D-01 is not settled"):
        move.resume(store, root=tmp_path)
    (tmp_path / "build/rebase/other").mkdir()
    with pytest.raises(BadInput, match="no upstream is named"):
        move.abort(store, root=tmp_path)


def test_abort_leaves_nothing_behind(stack, store, tmp_path):
    stopped = begin(stack, store, tmp_path, "1.3")
    assert move.abort(store, "demo", root=tmp_path) == stopped.path
    assert not stopped.path.exists()
    assert not (tmp_path / "stacks/new.yaml").exists()
    for call in (lambda: resume(store, tmp_path), lambda: move.abort(store, "demo", root=tmp_path)):
        with pytest.raises(BadInput, match="no rebase is under way"):
            call()


def test_what_upstream_has_is_dropped_only_when_accepted(stack, store, tmp_path):
    replace_series(
        stack,
        store,
        tmp_path,
        (letter(1), {"pkg/numbers.txt": NUMBERS + b"more\n"}),
        (letter(2), {"pkg/code.py": CODE.replace(b"return 3", b"return 4")}),
    )
    with pytest.raises(CheckFailed, match="nothing is left of D-01") as stopped:
        begin(stack, store, tmp_path, "1.1")
    assert "--accept D-01" in stopped.value.do
    done = begin(stack, store, tmp_path, "1.1", "D-01")
    assert done.written.dropped == ("D-01",)
    assert done.written.kept == ("0001-numbers-change-2.patch",)
    assert "# above 0002" in (tmp_path / "series/demo/1.1/series").read_text()


def test_a_patch_with_a_living_dependant_is_not_dropped(stack, store, tmp_path):
    replace_series(
        stack,
        store,
        tmp_path,
        (letter(1), {"pkg/numbers.txt": changed_numbers(2)}),
        (letter(2, depends=("D-01",)), {"pkg/code.py": CODE.replace(b"return 3", b"return 4")}),
    )
    with pytest.raises(CheckFailed, match="D-01 cannot be dropped"):
        begin(stack, store, tmp_path, "1.3", "D-01")
    assert begin(stack, store, tmp_path, "1.3").stopped
    with pytest.raises(CheckFailed, match="D-01 cannot be dropped"):
        resume(store, tmp_path, "D-01")
    assert resume(store, tmp_path, "D-01", "D-02").written.dropped == ("D-01", "D-02")


def test_a_patch_that_lost_a_hunk_stops_it(stack, store, tmp_path):
    changed = changed_numbers(2, word="upstream").replace(b"line 28\n", b"changed 28\n")
    replace_series(stack, store, tmp_path, (letter(1), {"pkg/numbers.txt": changed}))
    stopped = begin(stack, store, tmp_path, "1.3")
    assert stopped.stopped == "D-01 shrank from 2 hunks to 1"
    assert b"changed 28" in (stopped.path / "pkg/numbers.txt").read_bytes()
    assert git(stopped.path, "diff", "--cached", "--name-only").split() == ["pkg/numbers.txt"]
    done = resume(store, tmp_path)
    assert done.written.changed == ("0001-numbers-change-1.patch",)


def test_what_is_in_the_way_is_never_written_over(stack, store, tmp_path):
    begin(stack, store, tmp_path, "1.3")
    with pytest.raises(BadInput, match="is there"):
        begin(stack, store, tmp_path, "1.3")
    move.abort(store, "demo", root=tmp_path)
    (tmp_path / "series/demo/1.3").mkdir()
    with pytest.raises(BadInput, match=r"1\.3 is there"):
        begin(stack, store, tmp_path, "1.3")
    (tmp_path / "stacks/new.yaml").write_text("other\n")
    with pytest.raises(BadInput, match=r"new\.yaml is there"):
        begin(stack, store, tmp_path, "1.1")


def test_it_goes_on_after_a_kill_between_two_patches(stack, store, tmp_path):
    stopped = begin(stack, store, tmp_path, "1.3")
    file = stopped.path / ".git/sparkforge-rebase.json"
    state = msgspec.json.decode(file.read_bytes(), type=State)
    assert state.pending == ("0001-numbers-change-two.patch", "0002-code-three-is-four.patch")
    (stopped.path / "pkg/numbers.txt").write_bytes(b"first\n" + changed_numbers(2, word="settled"))
    again = msgspec.structs.replace(state)
    file.write_bytes(msgspec.json.encode(again))
    assert resume(store, tmp_path).stopped == ""
