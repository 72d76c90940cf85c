"""Every outcome of a rebase, on real repositories: a small upstream, its next release, and patches between them."""

from __future__ import annotations

import pytest
from patch_forge import BASE, NUMBERS, changed_numbers, message

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.git.objects import contents
from sparkforge.patches.rebase.engine import judge
from sparkforge.patches.rebase.item import Item, of_series
from sparkforge.patches.rebase.outcome import Outcome, Probe

TWO = {"pkg/numbers.txt": changed_numbers(2)}


def items_of(forge, *changes):
    """Items of changes; what is not the numbers' file is never predicted gone."""
    return of_series(forge.git, forge.write(forge.patches(*changes)))


def text(number=1, **words):
    return message(f"V-{number:02}", f"numbers: change {number}", drop="exists never", **words)


def judged(forge, new, items, accepted=frozenset()):
    """Verdicts on a release that has these files in place of the base's; None deletes one."""
    return judge(forge.git, forge.commit, forge.made(forge.commit, new), items, accepted)


def one(forge, new, *changes):
    return judged(forge, new, items_of(forge, *changes)).verdicts[-1]


def blob(forge, tree, path):
    return contents(forge.git, [f"{tree}:{path}"])[f"{tree}:{path}"]


def replaced(*pairs, data=NUMBERS):
    for old, new in pairs:
        assert data.count(old) == 1, old
        data = data.replace(old, new)
    return data


def test_a_patch_whose_file_changed_elsewhere_is_clean(forge):
    done = judged(forge, {"pkg/numbers.txt": changed_numbers(25)}, items_of(forge, (text(), TWO)))
    (verdict,) = done.verdicts
    assert (verdict.outcome, verdict.applies) == (Outcome.CLEAN, True)
    assert blob(forge, done.tree, "pkg/numbers.txt") == changed_numbers(2, 25)


def test_lines_inserted_above_move_it(forge):
    verdict = one(
        forge, {"pkg/numbers.txt": b"new\nnew too\n" + NUMBERS}, (text(), {"pkg/numbers.txt": changed_numbers(20)})
    )
    assert verdict.outcome is Outcome.MOVED
    assert "pkg/numbers.txt +2" in verdict.found(Probe.STRICT).said


def test_a_block_that_upstream_moved_is_followed_where_it_stands_once(forge):
    block = b"line 20\nline 21\nline 22\nline 23\nline 24\nline 25\nline 26\n"
    new = block + replaced((block, b""))
    done = judged(forge, {"pkg/numbers.txt": new}, items_of(forge, (text(), {"pkg/numbers.txt": changed_numbers(23)})))
    assert done.verdicts[0].outcome is Outcome.MOVED
    assert blob(forge, done.tree, "pkg/numbers.txt").startswith(b"line 20\nline 21\nline 22\nchanged 23\n")


def test_a_changed_context_is_merged_never_fuzzed(forge):
    new = replaced((b"line 4\n", b"line four\n"))
    done = judged(forge, {"pkg/numbers.txt": new}, items_of(forge, (text(), TWO)))
    verdict = done.verdicts[0]
    assert (verdict.outcome, verdict.found(Probe.STRICT).holds) == (Outcome.MERGED, False)
    assert blob(forge, done.tree, "pkg/numbers.txt") == replaced(
        (b"line 2\n", b"changed 2\n"), (b"line 4\n", b"line four\n")
    )


def test_where_the_context_stands_twice_the_merge_decides_and_not_the_nearest_place(forge):
    """Git apply takes the nearest copy, which is another function; the merge knows the right one."""
    calls = ("begin", "one", "two", "three", "work", "four", "five", "six", "end")
    block = b"def {}():\n" + "".join(f"    {name}()\n" for name in calls).encode()
    f, g = block.replace(b"{}", b"f"), block.replace(b"{}", b"g")
    base = forge.made(forge.commit, {"pkg/code.py": f + g})
    forge.commit = base
    items = items_of(forge, (text(), {"pkg/code.py": f + g.replace(b"work()", b"play()")}))
    # Upstream inserts a third copy above: the old place of g is f's now.
    h = block.replace(b"{}", b"h")
    done = judged(forge, {"pkg/code.py": h + f + g}, items)
    assert done.verdicts[0].applies
    assert blob(forge, done.tree, "pkg/code.py") == h + f + g.replace(b"work()", b"play()")


def test_a_renamed_file_is_followed(forge):
    done = judged(
        forge, {"pkg/numbers.txt": None, "lib/digits.txt": changed_numbers(29)}, items_of(forge, (text(), TWO))
    )
    verdict = done.verdicts[0]
    assert (verdict.outcome, verdict.renamed) == (Outcome.MERGED, (("pkg/numbers.txt", "lib/digits.txt"),))
    assert blob(forge, done.tree, "lib/digits.txt") == changed_numbers(2, 29)


def test_what_upstream_took_word_for_word_is_upstreamed(forge):
    verdict = one(forge, TWO, (text(), TWO))
    assert (verdict.outcome, verdict.found(Probe.REVERSE).holds) == (Outcome.UPSTREAMED, True)


def test_what_upstream_took_beside_other_changes_is_upstreamed_by_the_empty_merge(forge):
    new = changed_numbers(2).replace(b"line 4\n", b"line four\n")
    verdict = one(forge, {"pkg/numbers.txt": new}, (text(), TWO))
    assert verdict.outcome is Outcome.UPSTREAMED
    assert (verdict.found(Probe.REVERSE).holds, verdict.found(Probe.EMPTY).holds) == (False, True)


def test_an_upstreamed_patch_is_one_too_where_an_earlier_one_changed_its_context(forge):
    changes = [
        (text(1), {"pkg/numbers.txt": changed_numbers(4)}),
        (text(2), {"pkg/numbers.txt": changed_numbers(2, 4)}),
    ]
    assert one(forge, TWO, *changes).outcome is Outcome.UPSTREAMED


def test_what_upstream_rewrote_in_the_same_words_is_upstreamed_by_its_lines(forge):
    ours = b"def four():\n    check_the_first_thing()\n    check_the_second_thing()\n    return 4\n"
    theirs = b"import sys\n\n\nclass Four:\n" + ours.replace(b"    ", b"        ").replace(b"def", b"    def")
    code = BASE["pkg/code.py"]
    verdict = one(forge, {"pkg/code.py": theirs}, (text(), {"pkg/code.py": code + b"\n\n" + ours}))
    assert verdict.outcome is Outcome.UPSTREAMED
    assert verdict.found(Probe.LINES).said == "4 of 4 new lines"


def test_line_evidence_counts_only_together_with_a_conflict(forge):
    """The new tree holds the line elsewhere, but the patch still applies: nothing says that it is needless."""
    verdict = one(
        forge, {"pkg/other.txt": b"changed 2\nchanged 3\n"}, (text(), {"pkg/numbers.txt": changed_numbers(2, 3)})
    )
    assert verdict.outcome is Outcome.CLEAN


def test_lines_that_the_old_upstream_had_are_no_evidence(forge):
    forge.commit = forge.made(forge.commit, {"pkg/other.txt": b"changed 2\nchanged 3\n"})
    items = items_of(forge, (text(), {"pkg/numbers.txt": changed_numbers(2, 3)}))
    new = {"pkg/numbers.txt": changed_numbers(2, 3, word="upstream"), "pkg/more.txt": b"changed 2\nchanged 3\n"}
    verdict = judged(forge, new, items).verdicts[0]
    assert (verdict.outcome, verdict.found(Probe.LINES).said) == (Outcome.CONFLICT, "0 of 0 new lines")


def test_one_of_two_hunks_upstream_is_partly(forge):
    new = changed_numbers(2).replace(b"line 4\n", b"line four\n")
    done = judged(
        forge, {"pkg/numbers.txt": new}, items_of(forge, (text(), {"pkg/numbers.txt": changed_numbers(2, 25)}))
    )
    verdict = done.verdicts[0]
    assert (verdict.outcome, verdict.applies) == (Outcome.PARTLY, True)
    assert "pkg/numbers.txt:1" in verdict.found(Probe.LINES).said
    assert b"changed 25" in blob(forge, done.tree, "pkg/numbers.txt")


def test_half_of_the_lines_of_a_conflict_is_partly_too(forge):
    changed = {"pkg/numbers.txt": changed_numbers(2, 12, 22)}
    new = changed_numbers(2, 12).replace(b"line 22\n", b"upstream 22\n")
    verdict = one(forge, {"pkg/numbers.txt": new}, (text(), changed))
    assert (verdict.outcome, verdict.applies, verdict.found(Probe.LINES).said) == (
        Outcome.PARTLY,
        False,
        "2 of 3 new lines",
    )


def test_three_quarters_of_the_lines_of_a_conflict_are_upstreamed(forge):
    changed = {"pkg/numbers.txt": changed_numbers(2, 9, 16, 22)}
    new = changed_numbers(2, 9, 16).replace(b"line 22\n", b"upstream 22\n")
    verdict = one(forge, {"pkg/numbers.txt": new}, (text(), changed))
    assert (verdict.outcome, verdict.found(Probe.LINES).said) == (Outcome.UPSTREAMED, "3 of 4 new lines")


def test_less_than_half_stays_a_conflict(forge):
    changed = {"pkg/numbers.txt": changed_numbers(2, 12, 22)}
    new = changed_numbers(2).replace(b"line 22\n", b"upstream 22\n")
    verdict = one(forge, {"pkg/numbers.txt": new}, (text(), changed))
    assert (verdict.outcome, verdict.found(Probe.LINES).said) == (Outcome.CONFLICT, "1 of 3 new lines")


def test_a_conflict_shows_the_hunk_and_what_took_its_place(forge):
    new = changed_numbers(2, word="upstream")
    verdict = one(forge, {"pkg/numbers.txt": new}, (text(), {"pkg/numbers.txt": changed_numbers(2, 25)}))
    assert (verdict.outcome, verdict.applies) == (Outcome.CONFLICT, False)
    (conflict,) = verdict.conflicts
    assert (conflict.path, conflict.hunk, conflict.line) == ("pkg/numbers.txt", 1, 1)
    assert {"-line 2", "+changed 2", " line 3"} <= set(conflict.wanted)
    assert conflict.instead == ("line 1", "upstream 2", "line 3", "line 4", "line 5")
    assert conflict.at == 1


def test_a_conflict_in_a_renamed_file_names_both(forge):
    new = {"pkg/numbers.txt": None, "lib/digits.txt": changed_numbers(2, word="upstream")}
    verdict = one(forge, new, (text(), TWO))
    assert verdict.outcome is Outcome.CONFLICT
    assert verdict.renamed == (("pkg/numbers.txt", "lib/digits.txt"),)
    assert (verdict.conflicts[0].path, verdict.conflicts[0].now) == ("pkg/numbers.txt", "lib/digits.txt")


def test_a_file_taken_apart_says_where_its_lines_went(forge):
    """Too little of the file is in any one place for git to call it a rename."""
    lines = NUMBERS.splitlines(keepends=True)
    new = {
        "pkg/numbers.txt": None,
        "a.txt": b"".join(lines[:8]) + b"x = 1\n" * 60,
        "b.txt": b"".join(lines[8:]) + b"y = 1\n" * 90,
    }
    verdict = one(forge, new, (text(), {"pkg/numbers.txt": changed_numbers(4), "pkg/mine.py": b"mine = 1\n"}))
    assert verdict.outcome is Outcome.CONFLICT
    assert verdict.conflicts[0].now == ""
    assert verdict.conflicts[0].elsewhere == ("a.txt (7 of 7 lines)",)


def test_it_goes_past_the_first_conflict(forge):
    changes = [
        (text(1), {"pkg/numbers.txt": changed_numbers(2)}),
        (text(2), {"pkg/numbers.txt": changed_numbers(2, 15)}),
        (text(3), {"pkg/numbers.txt": changed_numbers(2, 15, 28)}),
    ]
    new = changed_numbers(2, 28, word="upstream")
    done = judged(forge, {"pkg/numbers.txt": new}, items_of(forge, *changes))
    assert [v.outcome for v in done.verdicts] == [Outcome.CONFLICT, Outcome.CLEAN, Outcome.CONFLICT]
    assert blob(forge, done.tree, "pkg/numbers.txt") == new.replace(b"line 15\n", b"changed 15\n")


def test_what_builds_on_a_conflict_is_a_cascade_and_names_it(forge):
    again = changed_numbers(2).replace(b"changed 2\n", b"changed 2 again\n")
    changes = [(text(1), TWO), (text(2), {"pkg/numbers.txt": again})]
    done = judged(forge, {"pkg/numbers.txt": changed_numbers(2, word="upstream")}, items_of(forge, *changes))
    assert [v.outcome for v in done.verdicts] == [Outcome.CONFLICT, Outcome.CASCADE]
    assert done.verdicts[1].because == ("V-01",)


def test_what_builds_on_a_conflict_and_meets_upstream_itself_is_a_conflict(forge):
    both = changed_numbers(2, 20).replace(b"changed 2\n", b"changed 2 again\n")
    changes = [(text(1), TWO), (text(2), {"pkg/numbers.txt": both})]
    done = judged(forge, {"pkg/numbers.txt": changed_numbers(2, 20, word="upstream")}, items_of(forge, *changes))
    assert [v.outcome for v in done.verdicts] == [Outcome.CONFLICT, Outcome.CONFLICT]


def test_a_patch_to_a_file_of_a_failed_patch_is_a_cascade(forge):
    changes = [
        (text(1), {**TWO, "pkg/new.py": b"one = 1\ntwo = 2\n"}),
        (text(2), {"pkg/new.py": b"one = 1\ntwo = 3\n"}),
    ]
    done = judged(forge, {"pkg/numbers.txt": changed_numbers(2, word="upstream")}, items_of(forge, *changes))
    assert [v.outcome for v in done.verdicts] == [Outcome.CONFLICT, Outcome.CASCADE]


def test_a_patch_that_changes_nothing_is_empty_and_not_upstreamed(forge):
    hunk = b"@@ -1,4 +1,4 @@\n-line 1\n+line 1\n line 2\n line 3\n line 4\n"
    raw = b"diff --git a/pkg/numbers.txt b/pkg/numbers.txt\n--- a/pkg/numbers.txt\n+++ b/pkg/numbers.txt\n" + hunk
    nothing = Item("0001-nothing.patch", raw, "0001-nothing.patch", "nothing")
    assert judged(forge, {}, [nothing]).verdicts[0].outcome is Outcome.EMPTY


def test_a_file_that_is_gone_makes_it_obsolete(forge):
    verdict = one(forge, {"pkg/numbers.txt": None}, (text(), TWO))
    assert (verdict.outcome, verdict.found(Probe.FILES).said) == (Outcome.OBSOLETE, "gone: pkg/numbers.txt")


def test_one_gone_file_of_two_is_a_conflict(forge):
    change = {**TWO, "pkg/code.py": BASE["pkg/code.py"].replace(b"return 1", b"return 7")}
    verdict = one(forge, {"pkg/numbers.txt": None}, (text(), change))
    assert (verdict.outcome, verdict.conflicts[0].why) == (Outcome.CONFLICT, "the file is gone")


def test_drop_when_makes_a_patch_obsolete_that_still_applies(forge):
    letter = message(drop="contains README :: already")
    verdict = one(forge, {"README": b"already\n"}, (letter, TWO))
    assert (verdict.outcome, verdict.applies) == (Outcome.OBSOLETE, True)
    assert verdict.found(Probe.STRICT).holds
    assert verdict.found(Probe.DROP_WHEN).holds


def test_drop_when_follows_a_file_to_another_path(forge):
    letter = message(drop="contains pkg/numbers.txt|lib/numbers.txt :: ^already$")
    assert one(forge, {"lib/numbers.txt": b"already\n"}, (letter, TWO)).outcome is Outcome.CLEAN
    away = {"pkg/numbers.txt": None, "lib/numbers.txt": NUMBERS + b"already\n"}
    assert one(forge, away, (letter, TWO)).outcome is Outcome.OBSOLETE


def test_a_patch_that_creates_a_file_that_is_there_conflicts(forge):
    verdict = one(forge, {"a.txt": b"theirs = 1\n"}, (text(), {"a.txt": b"ours = 1\n"}))
    assert (verdict.outcome, verdict.conflicts[0].why) == (Outcome.CONFLICT, "upstream has made a file of that name")


def test_only_what_is_accepted_is_dropped(forge):
    """An upstreamed patch stays in the report; a living one is dropped by its name alone."""
    items = items_of(forge, (text(1), TWO), (text(2), {"pkg/numbers.txt": changed_numbers(2, 20)}))
    kept = judged(forge, {"README": b"new\n"}, items)
    dropped = judged(forge, {"README": b"new\n"}, items, frozenset({"V-01"}))
    assert blob(forge, kept.tree, "pkg/numbers.txt") == changed_numbers(2, 20)
    assert blob(forge, dropped.tree, "pkg/numbers.txt") == changed_numbers(20)
    assert [v.dropped for v in dropped.verdicts] == [True, False]


def test_a_dropped_patch_names_its_living_dependants(forge):
    changes = [(text(1), TWO), (text(2, depends=("V-01",)), {"pkg/numbers.txt": changed_numbers(2, 20)})]
    done = judged(forge, TWO, items_of(forge, *changes))
    assert done.verdicts[0].outcome is Outcome.UPSTREAMED
    assert done.verdicts[0].dependants == ("V-02",)
    assert done.verdicts[0].then == "keep for V-02"


def test_a_patch_goes_together_with_what_depends_on_it_alone(forge):
    both = {"pkg/numbers.txt": changed_numbers(2, 20)}
    items = items_of(forge, (text(1), TWO), (text(2, depends=("V-01",)), both))
    done = judged(forge, both, items)
    assert [v.then for v in done.verdicts] == ["drop", "drop"]
    elsewhere = Item("0001-x.patch", b"", "W-01", "x", depends_on=("V-02",))
    weighed = judge(forge.git, forge.commit, forge.made(forge.commit, both), items, beside=(elsewhere,)).verdicts
    assert [v.then for v in weighed] == ["keep for V-02", "keep for W-01"]


def test_an_unknown_name_is_not_accepted(forge):
    with pytest.raises(BadInput, match="V-09 is no patch"):
        judged(forge, {}, items_of(forge, (text(), TWO)), frozenset({"V-09"}))


def test_a_series_that_does_not_fit_its_own_tree_is_refused(forge):
    items = items_of(forge, (text(), TWO))
    forge.commit = forge.made(forge.commit, {"pkg/numbers.txt": changed_numbers(2, word="other")})
    with pytest.raises(CheckFailed, match="does not apply to the tree that the series is for"):
        judged(forge, {}, items)


def test_equal_inputs_give_equal_verdicts(forge):
    items = items_of(forge, (text(1), TWO), (text(2), {"pkg/numbers.txt": changed_numbers(2, 20)}))
    new = {"pkg/numbers.txt": changed_numbers(2, word="upstream")}
    assert judged(forge, new, items) == judged(forge, new, items)
