"""What a result is worth: bound to its run, its samples judged on reading, its sources as they were."""

from __future__ import annotations

import json
from types import SimpleNamespace

import msgspec
import pytest

from sparkforge.cli import proofs as task
from sparkforge.cli.common import opened
from sparkforge.core import console
from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.paths import RESULTS, ROOT
from sparkforge.git.repository import Git
from sparkforge.results import proofs, provenance
from sparkforge.results.proofs import Proof, State

JUDGE = """
def failures(result):
    return [f"{one} is more than 3" for one in result["samples"] if one > 3]
"""
TREE = {"csrc/k.cu": provenance.blob(b"// k\n"), "pkg/a.py": provenance.blob(b"a\n")}
PROOF = Proof(
    "that it works", "a GPU", "python scripts/check.py --json x.json", "scripts/judge.py:failures", release=True
)


@pytest.fixture
def checkout(tmp_path):
    """A checkout with one bound result, whose judge and sources it holds."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/judge.py").write_text(JUDGE)
    (tmp_path / "scripts/check.py").write_text("check = 1\n")
    reads = {"scripts/check.py": provenance.blob(b"check = 1\n")} | {
        f"demo:{path}": blob for path, blob in TREE.items()
    }
    bound(tmp_path, reads=reads)
    return tmp_path


def bound(root, *, samples=(1, 2), **record):
    """Write x.json as a run does."""
    run = {
        "begun": "2026-11-22T06:00:00Z",
        "commit": {"id": "4" * 40, "dirty": []},
        "wrong": [],
        "reads": {},
        "trees": {"demo": "1" * 40},
    }
    said = {"samples": list(samples), "provenance": run | record}
    said["provenance"]["sha256"] = provenance.digest(said)
    (root / "x.json").write_text(provenance.text(said))
    return said


def row(root, tree=TREE, proof=PROOF):
    (found,) = proofs.rows({"demo": tree}.__getitem__, {"x.json": proof}, root=root)
    return found


def state(root, **more):
    found = row(root, **more)
    return found.state, found.why


def test_a_bound_result_whose_samples_pass_is_fresh(checkout):
    assert state(checkout) == (State.FRESH, ())
    assert row(checkout).run == ("2026-11-22T06:00:00Z", "4" * 40)


def test_another_layout_of_a_result_is_the_same_result(checkout):
    path = checkout / "x.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()), indent=3))
    assert state(checkout)[0] is State.FRESH


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        (TREE | {"pkg/a.py": provenance.blob(b"b\n")}, "demo:pkg/a.py changed"),
        ({"csrc/k.cu": TREE["csrc/k.cu"]}, "demo:pkg/a.py is gone"),
    ],
)
def test_a_file_of_the_tree_that_changed_makes_a_result_stale(checkout, tree, why):
    assert state(checkout, tree=tree) == (State.STALE, (why,))


def test_a_file_of_the_checkout_that_changed_makes_a_result_stale(checkout):
    (checkout / "scripts/check.py").write_text("check = 2\n")
    assert state(checkout) == (State.STALE, ("scripts/check.py changed",))
    (checkout / "scripts/check.py").unlink()
    assert state(checkout) == (State.STALE, ("scripts/check.py is gone",))


def test_an_edit_of_what_the_run_did_not_open_leaves_a_result_fresh(checkout):
    (checkout / "scripts/other.py").write_text("")
    assert state(checkout, tree=TREE | {"pkg/new.py": "1" * 40})[0] is State.FRESH


@pytest.mark.parametrize(
    "edit",
    [
        lambda said: said.update(samples=[1, 1]),
        lambda said: said["provenance"].update(begun="2027-01-01T00:00:00Z"),
        lambda said: said["provenance"]["reads"].clear(),
        lambda said: said["provenance"].pop("sha256"),
    ],
)
def test_a_result_that_was_edited_is_not_fresh(checkout, edit):
    said = json.loads((checkout / "x.json").read_bytes())
    edit(said)
    (checkout / "x.json").write_text(json.dumps(said))
    assert state(checkout)[0] is State.EDITED


def test_a_verdict_is_computed_from_the_samples_whatever_the_result_says_of_itself(checkout):
    bound(checkout, samples=(1, 5))
    assert state(checkout) == (State.FAILED, ("5 is more than 3",))


def test_a_judge_that_changed_judges_the_old_samples_anew(checkout):
    (checkout / "scripts/judge.py").write_text(JUDGE.replace("> 3", "> 1"))
    assert state(checkout) == (State.FAILED, ("2 is more than 3",))


def test_a_result_without_what_its_judge_reads_has_failed(checkout):
    said = {"other": 1, "provenance": {"begun": "", "commit": {"id": "", "dirty": []}, "wrong": [], "reads": {}}}
    said["provenance"] |= {"trees": {"demo": "1" * 40}}
    said["provenance"]["sha256"] = provenance.digest(said)
    (checkout / "x.json").write_text(json.dumps(said))
    found, why = state(checkout)
    assert found is State.FAILED
    assert "KeyError: 'samples'" in why[0]


def test_a_result_that_nothing_binds_is_unbound(checkout):
    (checkout / "x.json").write_text('{"samples": [1], "ok": true}')
    assert state(checkout) == (State.UNBOUND, ("made before results were bound",))
    bound(checkout, wrong=["scripts/check.py was written during the run"])
    assert state(checkout) == (State.UNBOUND, ("scripts/check.py was written during the run",))


def test_a_result_that_opened_no_file_of_the_patched_tree_is_unbound(checkout):
    """It would be fresh for ever."""
    proof = msgspec.structs.replace(PROOF, trees=("demo", "other"))
    assert state(checkout, proof=proof) == (State.UNBOUND, ("no file of other was opened",))


def test_a_result_from_changed_files_says_so(checkout):
    bound(checkout, commit={"id": "4" * 40, "dirty": ["scripts/check.py"]})
    assert row(checkout).run[-1] == "dirty: scripts/check.py"


def test_a_result_that_is_not_there_is_missing(checkout):
    (checkout / "x.json").unlink()
    assert state(checkout)[0] is State.MISSING


@pytest.mark.parametrize("content", ["[]", "{", ""])
def test_a_file_that_is_no_result_is_refused(checkout, content):
    (checkout / "x.json").write_text(content)
    with pytest.raises(BadInput, match=r"x\.json"):
        state(checkout)


def test_a_judge_that_is_not_there_is_refused(checkout):
    with pytest.raises(BadInput, match=r"there is no judge scripts/no.py:failures"):
        state(checkout, proof=msgspec.structs.replace(PROOF, judge="scripts/no.py:failures"))


def refused(found, *, gate):
    try:
        proofs.require(found, gate=gate)
    except CheckFailed as failed:
        return failed
    return None


def test_the_gate_refuses_what_a_release_needs_and_is_not_fresh(checkout):
    assert refused([row(checkout)], gate=True) is None
    (checkout / "scripts/check.py").write_text("check = 2\n")
    failed = refused([row(checkout)], gate=True)
    assert "x.json: stale: scripts/check.py changed" in failed.why
    assert PROOF.repeat in failed.do
    assert refused([row(checkout)], gate=False) is None  # an edited script turns nothing red but a release
    assert refused([row(checkout, proof=msgspec.structs.replace(PROOF, release=False))], gate=True) is None


def test_an_edited_result_is_refused_without_the_gate_too(checkout):
    path = checkout / "x.json"
    path.write_text(path.read_text().replace("[1, 2]", "[1, 3]"))
    assert (
        "x.json: edited"
        in refused([row(checkout, proof=msgspec.structs.replace(PROOF, release=False))], gate=False).why
    )


def test_the_files_of_a_tree_are_looked_up_once_and_only_when_asked_for(tmp_path, monkeypatch):
    git = Git.init_bare(tmp_path / "x.git")
    blob = git.text("hash-object", "-w", "--stdin", stdin=b"a\n")
    tree = git.text("mktree", stdin=f"100644 blob {blob}\ta.py\n".encode())
    asked = []
    monkeypatch.setattr(proofs.trees, "of", lambda _store, _stack, name: asked.append(name) or SimpleNamespace(id=tree))
    monkeypatch.setattr(proofs, "git_of", lambda _: git)
    files = proofs.tree_files(None, None)
    assert asked == []
    assert files("demo") == files("demo") == {"a.py": provenance.blob(b"a\n")}
    assert asked == ["demo"]


# ---- this checkout


def test_every_result_is_listed_and_every_judge_is_there():
    found = {str(path.relative_to(ROOT)) for path in RESULTS.rglob("*.json")}
    assert found == set(proofs.listed())
    for name, proof in proofs.listed().items():
        file, _, function = proof.judge.partition(":")
        assert not file or f"def {function}(" in (ROOT / file).read_text(), name


def test_no_result_of_this_checkout_was_edited():
    rows = proofs.rows(lambda _: {})
    assert refused(rows, gate=False) is None


def test_the_table_fits_100_columns_and_json_says_all_of_it(capsys, monkeypatch):
    monkeypatch.setattr(proofs, "tree_files", lambda *_: lambda _: {})
    monkeypatch.setattr(console, "_quiet", False)  # and as it was afterwards
    monkeypatch.setattr(task, "opened", lambda stack, as_json: opened(stack, as_json=as_json))
    task.list_.body(None)
    table = capsys.readouterr().out
    assert max(map(len, table.splitlines())) <= 100
    task.list_.body(None, json=True)
    said = json.loads(capsys.readouterr().out)
    assert {row["result"] for row in said} == set(proofs.listed())
    assert all(row["why"] for row in said if row["state"] != "fresh")


def test_every_file_has_its_line_in_the_readme():
    text = (RESULTS / "README.md").read_text()
    for name, proof in proofs.listed().items():
        head = f"### {name.removeprefix('results/')}"
        assert head in text, name
        entry = text.split(head)[1].split("\n### ")[0].split("\n## ")[0]
        assert " ".join(proof.repeat.split()) in " ".join(entry.split()), f"{name}: another command"
        for word in ("Shows:", "Machine:", "Date:", "State:"):
            assert word in entry, f"{name}: no {word}"
        state_ = "bound" if provenance.KEY in json.loads((ROOT / name).read_bytes()) else "unbound"
        assert f"State: {state_}" in entry, f"{name}: is {state_}"
    heads = [line[4:] for line in text.splitlines() if line.startswith("### ")]
    assert {f"results/{head}" for head in heads} == set(proofs.listed())
