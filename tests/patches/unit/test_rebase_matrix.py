"""A series over the releases of an index: one table, computed once, the same bytes for the same inputs."""

from __future__ import annotations

import pytest
from patch_forge import NUMBERS, Forge, changed_numbers, message

from sparkforge.core.errors import BadInput
from sparkforge.git.of_store import git_of
from sparkforge.patches.place import place
from sparkforge.patches.rebase import matrix as over
from sparkforge.patches.rebase.outcome import Outcome


def test_the_release_that_broke_a_patch_is_named(upstream, store):
    found = over.matrix(upstream, store, "demo")
    assert found.releases == ("1.1", "1.2", "1.3")
    first, second = found.rows
    assert first.outcomes == (Outcome.CLEAN, Outcome.CONFLICT, Outcome.CONFLICT)
    assert (first.broke, first.upstreamed) == ("1.2", "")
    assert (second.outcomes, second.broke) == ((Outcome.CLEAN,) * 3, "")


def test_the_release_that_took_a_patch_is_named_only_if_it_keeps_it(upstream, store, tmp_path):
    folder = tmp_path / "series/demo/1.0"
    forge = Forge(git_of(store), tmp_path, place(upstream, store, "demo").commit)
    for old in folder.iterdir():
        old.unlink()
    taken = changed_numbers(2, word="upstream")
    patches = forge.patches(
        (
            message("D-01", "numbers: upstream two", drop="exists never"),
            {"pkg/numbers.txt": taken},
        ),
        (
            message("D-02", "numbers: more", drop="exists never"),
            {"pkg/numbers.txt": taken + b"more\n"},
        ),
    )
    for patch in patches:
        (folder / patch.name).write_bytes(patch.raw)
    (folder / "series").write_text("".join(f"{patch.name}\n" for patch in patches))
    found = over.matrix(upstream, store, "demo")
    assert found.rows[0].outcomes == (Outcome.CLEAN, Outcome.UPSTREAMED, Outcome.UPSTREAMED)
    assert found.rows[0].upstreamed == "1.2"
    assert found.rows[1].outcomes[0] is Outcome.UPSTREAMED  # 1.1 has the line, 1.2 has lost it again
    assert found.rows[1].upstreamed == ""
    assert NUMBERS not in patches[0].raw


def test_a_second_run_computes_nothing_and_gives_the_same_bytes(upstream, store, monkeypatch):
    before = over.markdown(over.matrix(upstream, store, "demo"))
    monkeypatch.setattr(over, "judge", None)
    assert over.markdown(over.matrix(upstream, store, "demo")) == before
    assert "| D-01 | clean | conflict | conflict | 1.2 |  |" in before


def test_another_series_is_computed_anew(upstream, store, tmp_path, monkeypatch):
    over.matrix(upstream, store, "demo", ["1.1"])
    order = tmp_path / "series/demo/1.0/series"
    name = order.read_text().splitlines()[1]
    (order.parent / order.read_text().splitlines()[0]).unlink()
    order.write_text(f"{name}\n")
    assert len(over.matrix(upstream, store, "demo", ["1.1"]).rows) == 1


def test_what_is_no_upstream_or_no_release(upstream, store):
    with pytest.raises(BadInput, match="there is no upstream 'other'"):
        over.matrix(upstream, store, "other")
    with pytest.raises(BadInput, match="has no release 7"):
        over.matrix(upstream, store, "demo", ["1.1", "7"])
