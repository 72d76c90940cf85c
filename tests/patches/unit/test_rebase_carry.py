"""A series taken over the releases of a package index: what is a target, where a change came from, the report."""

from __future__ import annotations

import subprocess

import msgspec
import pytest
from patch_demo import RELEASES

from sparkforge.core.errors import BadInput, EnvironmentLacks
from sparkforge.inputs import package_index, releases
from sparkforge.patches.rebase import report as shown
from sparkforge.patches.rebase.carry import carry, targets
from sparkforge.patches.rebase.outcome import Outcome


def test_a_conflict_says_the_first_release_with_the_change(upstream, store):
    (report,) = carry(upstream, store, {"demo": "1.3"})
    assert [one.outcome for one in report.verdicts] == [Outcome.CONFLICT, Outcome.CLEAN]
    assert report.verdicts[0].conflicts[0].origin.release == "1.2"
    assert "since release 1.2" in "\n".join(shown.details(report))


def test_nobody_looks_for_it_when_told_so(upstream, store, local_index):
    (report,) = carry(upstream, store, {"demo": "1.3"}, origins=False)
    assert report.verdicts[0].conflicts[0].origin is None
    assert not [line for line in local_index.asked if "1.1.tar.gz" in line or "1.2.tar.gz" in line]


def test_a_clone_says_the_commit(upstream, store, tmp_path):
    clone = tmp_path / "clone"

    def git(*words):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=clone, check=True, capture_output=True
        )

    clone.mkdir()
    git("init", "-q")
    (clone / "pkg").mkdir()
    for release in ("1.0", "1.1", "1.2", "1.3"):
        for path, data in RELEASES[release].items():
            (clone / path).parent.mkdir(exist_ok=True)
            (clone / path).write_bytes(data)
        git("add", "-A")
        git("commit", "-q", "-m", f"what {release} brings")
        git("tag", f"v{release}")
    (report,) = carry(upstream, store, {"demo": "1.3"}, clone=clone)
    origin = report.verdicts[0].conflicts[0].origin
    assert (origin.title, len(origin.commit)) == ("what 1.2 brings", 40)
    git("tag", "-d", "v1.3")
    with pytest.raises(BadInput, match="does not hold both releases"):
        carry(upstream, store, {"demo": "1.3"}, clone=clone)
    with pytest.raises(BadInput, match="is no git repository"):
        carry(upstream, store, {"demo": "1.3"}, clone=tmp_path / "nothing")


@pytest.mark.parametrize(
    ("release", "what"),
    [
        ("1.9", "has no release 1.9"),
        ("0.9", "has no release 0.9"),
        ("1.0", "is not newer than the pin"),
        ("1.4", "has no sdist"),
        ("1.5", "was withdrawn"),
        ("one", "is no version"),
    ],
)
def test_what_is_no_target_is_said_in_a_sentence(upstream, store, release, what):
    with pytest.raises(BadInput, match=what):
        carry(upstream, store, {"demo": release})


def test_why_a_release_was_withdrawn_is_said(upstream, store):
    with pytest.raises(BadInput) as bad:
        carry(upstream, store, {"demo": "1.5"})
    assert bad.value.why == "it was broken"


def test_only_final_releases_with_a_source_are_between(upstream):
    assert releases.newer(upstream.upstreams["demo"]) == ("1.1", "1.2", "1.3")


def test_a_release_without_a_hash_is_refused(upstream, store, local_index):
    page = local_index.folder / "simple/demo/index.html"
    page.write_text(page.read_text().replace("demo-1.3.tar.gz#sha256=", "demo-1.3.tar.gz#md5="))
    for memo in (package_index._pages, releases.of):
        memo.cache_clear()
    with pytest.raises(EnvironmentLacks, match="gives no sha256"):
        carry(upstream, store, {"demo": "1.3"})


def test_an_accepted_name_must_be_a_patch_of_one_of_the_series(upstream, store):
    with pytest.raises(BadInput, match="D-07 is no patch of the series"):
        carry(upstream, store, {"demo": "1.3"}, frozenset({"D-07"}))


def test_a_component_that_is_not_in_the_stack(upstream, store):
    with pytest.raises(BadInput, match="there is no upstream 'cutlass'"):
        targets(upstream, store, "cutlass", "1.0")
    with pytest.raises(BadInput, match="no release is named"):
        targets(upstream, store, "demo", "")


def test_a_pair_takes_what_the_first_upstream_requires(upstream, store):
    other = msgspec.structs.replace(upstream.upstreams["demo"], package="other-package")
    pair = msgspec.structs.replace(upstream, upstreams={**upstream.upstreams, "other": other})
    assert targets(pair, store, "", "1.2") == {"demo": "1.2", "other": "2.0"}
    assert targets(pair, store, "", "demo=1.3,other=2.0") == {"demo": "1.3", "other": "2.0"}
    with pytest.raises(BadInput, match="does not say which other-package it needs"):
        targets(pair, store, "", "1.3")


def test_the_table_keeps_to_a_hundred_columns(upstream, store):
    (report,) = carry(upstream, store, {"demo": "1.3"})
    long = [msgspec.structs.replace(one, title="a title " * 30) for one in report.verdicts]
    text = shown.table(msgspec.structs.replace(report, verdicts=tuple(long)))
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "D-01" in text


def test_the_page_is_the_same_for_the_same_inputs_and_quotes_nothing(upstream, store):
    pages = {shown.markdown(carry(upstream, store, {"demo": "1.3"}), command="invoke rebase") for _ in range(2)}
    (page,) = pages
    assert "## D-01: conflict" in page
    assert "now at line 1 of `pkg/numbers.txt`" in page
    assert "upstream 2" not in page
