"""Every predicate on the pin, on our own patched tree and on later releases, held against docs/rebase/drop-when.md."""

from __future__ import annotations

import re

import pytest

from sparkforge.core.paths import ROOT
from sparkforge.core.store import Store
from sparkforge.inputs import releases
from sparkforge.inputs.recipes import load_stack
from sparkforge.patches import drop, walk
from sparkforge.patches.place import place
from sparkforge.patches.rebase.dependants import weighed
from sparkforge.patches.rebase.item import of_series
from sparkforge.patches.rebase.outcome import Outcome, Verdict
from sparkforge.patches.series import load

pytestmark = pytest.mark.online
RELEASES = {"vllm": ("0.25.1", "0.32.0", "0.33.0"), "flashinfer": ("0.6.13", "0.7.0.post1", "0.7.2.post1")}
PAGE = (ROOT / "docs/rebase/drop-when.md").read_text()


@pytest.fixture(scope="module")
def facts():
    """By upstream and patch, whether the predicate holds on each tree in the order of the table; and the patches."""
    stack, store = load_stack("vllm-0.21"), Store.open()
    found = {}
    for name, later in RELEASES.items():
        at = place(stack, store, name)
        series = load(at.folder)
        upstream = stack.upstreams[name]
        trees = [at.tree, walk.tree(at.git, at.tree, series)]
        trees += [releases.commit(store, name, releases.at(upstream, release)).tree for release in later]
        for item in of_series(at.git, series):
            found[item.id] = ([drop.holds(at.git, tree, item.drop_when) for tree in trees], item)
    return found


def told():
    """The tables of the page."""
    rows = re.findall(r"^\| ([FV]-\d\d) \|((?: (?:yes|no) \|){5}) (.+) \|$", PAGE, re.MULTILINE)
    return {name: ([word == "yes" for word in re.findall(r"yes|no", cells)], why) for name, cells, why in rows}


def test_the_page_says_what_is_so_with_a_reason_for_each(facts):
    page = told()
    assert {name: cells for name, (cells, _) in page.items()} == {name: cells for name, (cells, _) in facts.items()}
    assert all(len(why) > 20 for _, why in page.values())
    assert [name for release in RELEASES.values() for name in release if name not in PAGE] == []


def test_a_pending_predicate_fires_on_our_own_tree_and_not_on_the_pin(facts):
    pending = {
        name: cells for name, (cells, item) in facts.items() if item.mail.trailers.upstream_status.startswith("Pending")
    }
    assert len(pending) > 10
    assert {name: cells[:2] for name, cells in pending.items()} == {name: [False, True] for name in pending}


@pytest.mark.parametrize("number", range(3))
def test_no_dropped_patch_leaves_a_living_dependant(facts, number):
    """For the pair of releases of a column: what the report would drop, against what depends on it."""
    items = [item for _, item in facts.values()]
    verdicts = [
        Verdict(name, name, name, Outcome.OBSOLETE if cells[2 + number] else Outcome.CLEAN, True, ())
        for name, (cells, _) in facts.items()
    ]
    gone = {one.id for one in weighed(verdicts, items) if one.then == "drop"}
    assert gone
    assert [item.id for item in items if item.id not in gone and gone & set(item.depends_on)] == []
    assert "V-03" not in gone  # V-12 imports from it
