"""Results that prove something: those of this checkout are fresh, and a stale one is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.paths import RESULTS, ROOT
from sparkforge.inputs.recipes import File, Upstream, load_stack
from sparkforge.results import __main__ as command
from sparkforge.results import proofs, stamp, verbs
from sparkforge.results.identity import Sources
from sparkforge.results.proofs import Proof, State

sys.path.insert(
    0, str(Path(__file__).parent.parent / "patches" / "unit")
)  # importlib mode puts no test folder on the path

from patch_forge import make_forge, message

PIN = {"pkg/a.py": b"a = 1\n", "pkg/b.py": b"b = 1\n", "pkg/far.py": b"far = 1\n", "csrc/k.cu": b"// k\n"}
V01 = {"pkg/a.py": b"a = 2\n", "pkg/new.py": b"new = 1\n"}
V02 = {"pkg/b.py": b"b = 2\n"}
PROOF = Proof("that it works", "a GPU", "python scripts/check.py --json x.json", ())
READS = ("scripts/*.py", "!scripts/test_*", "demo:@V-01", "demo:csrc/k.cu", "demo:csrc/*")


def test_what_is_stamped_is_listed():
    stamped = [
        str(path.relative_to(ROOT))
        for path in sorted(RESULTS.rglob("*.json"))
        if isinstance(said := json.loads(path.read_bytes()), dict) and proofs.KEY in said
    ]
    assert set(stamped) <= set(proofs.listed()), "a stamped result that nobody looks at"


def test_what_the_mails_say_of_a_file_is_what_their_tree_holds(forged):
    forge, sources, tree = forged
    for path, blob in sources.series["demo"].blobs.items():
        assert forge.git.text("rev-parse", f"{tree}:{path}") == blob
    assert set(sources.series["demo"].blobs) == {"pkg/a.py", "pkg/new.py", "pkg/b.py"}


def upstream(sdist="0" * 64):
    file = File("demo-1.0.tar.gz", sdist)
    return Upstream("demo", "1.0", "https://example.invalid", "0" * 40, file, {}, "patches/demo/1.0", ())


def series(forge, *changes):
    text = [message(f"V-0{number}", f"demo: change {number}") for number in range(1, len(changes) + 1)]
    head = forge.commit
    for each, change in zip(text, changes, strict=True):
        head = forge.made(head, change, each)
    tree = forge.git.text("rev-parse", f"{head}^{{tree}}")
    forge.write(forge.patches(*zip(text, changes, strict=True)), tree)
    return tree


@pytest.fixture
def forged(tmp_path):
    forge = make_forge(tmp_path, PIN)
    tree = series(forge, V01, V02)
    scripts = forge.root / "scripts"
    scripts.mkdir()
    (scripts / "check.py").write_text("check = 1\n")
    (scripts / "test_check.py").write_text("not read\n")
    return forge, Sources({"demo": upstream()}, forge.root), tree


@pytest.fixture
def stamped(forged):
    forge, sources, tree = forged
    proof = msgspec.structs.replace(PROOF, reads=READS, holds="verdict.ok")
    path = forge.root / "x.json"
    path.write_text(json.dumps({"verdict": {"ok": True}, "trees": {"demo": tree}, "share": 0.1}, indent=1) + "\n")
    stamp.stamp(path, proof, sources, forge.git)
    return forge, path, proof


def state(forge, proof, sdist="0" * 64):
    (row,) = proofs.rows(Sources({"demo": upstream(sdist)}, forge.root), {"x.json": proof}, root=forge.root)
    return row.state, row.why


def test_a_stamp_leaves_the_result_as_it_was_and_can_be_made_again(stamped):
    forge, path, proof = stamped
    before = path.read_text()
    assert before.startswith('{\n "verdict": {\n  "ok": true\n')
    assert before.endswith("}\n")
    stamp.stamp(path, proof, Sources({"demo": upstream()}, forge.root), forge.git)
    assert path.read_text() == before
    reads = json.loads(before)["proof"]["reads"]
    assert set(reads) == {"scripts/check.py", "demo:", "demo:pkg/a.py", "demo:pkg/new.py", "demo:csrc/k.cu"}
    assert state(forge, proof) == (State.FRESH, "")


def edit_script(forge):
    (forge.root / "scripts/check.py").write_text("check = 2\n")


def add_script(forge):
    (forge.root / "scripts/more.py").write_text("")


def remove_scripts(forge):
    for file in (forge.root / "scripts").iterdir():
        file.unlink()


def edit_patch(forge):
    series(forge, V01 | {"pkg/a.py": b"a = 3\n"}, V02)


def patch_the_pins(forge):
    series(forge, V01, V02 | {"csrc/k.cu": b"// patched\n"})


def patch_more_of_the_folder(forge):
    series(forge, V01, V02 | {"csrc/more.cu": b"// new\n"})


def drop_patch(forge):
    series(forge, V02)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (edit_script, "scripts/check.py changed"),
        (add_script, "scripts/more.py was not read then"),
        (edit_patch, "demo:pkg/a.py changed"),
        (patch_the_pins, "demo:csrc/k.cu changed"),
        (patch_more_of_the_folder, "demo:csrc/more.cu was not read then"),
        (lambda forge: (forge.root / "scripts/check.py").unlink(), "scripts/check.py is gone"),
        (remove_scripts, "no source is named scripts/*.py"),
        (drop_patch, "demo:pkg/a.py is gone or no longer listed"),  # V-01 is another patch then
    ],
)
def test_a_source_that_changed_makes_a_proof_stale_and_is_named(stamped, edit, said):
    forge, _, proof = stamped
    edit(forge)
    (row,) = proofs.rows(Sources({"demo": upstream()}, forge.root), {"x.json": proof}, root=forge.root)
    assert row.state is State.STALE
    assert said in row.why
    with pytest.raises(CheckFailed) as refused:
        proofs.require([row])
    assert "x.json: stale" in refused.value.why
    assert proof.repeat in refused.value.do


def test_a_new_pin_makes_a_proof_stale(stamped):
    forge, _, proof = stamped
    found, why = state(forge, proof, sdist="1" * 64)
    assert found is State.STALE
    assert "demo: changed" in why


@pytest.mark.parametrize(
    "edit",
    [
        lambda forge: (forge.root / "scripts/test_check.py").write_text("edited\n"),
        lambda forge: series(forge, V01, V02 | {"pkg/far.py": b"far = 2\n"}),
        lambda forge: series(forge, V01, {"pkg/b.py": b"b = 3\n"}),
        lambda forge: series(forge, V01, V02, {"docs/x": b"x\n"}),
    ],
)
def test_an_edit_of_what_it_did_not_read_leaves_a_proof_fresh(stamped, edit):
    forge, _, proof = stamped
    edit(forge)
    assert state(forge, proof) == (State.FRESH, "")


def test_other_states(stamped):
    forge, path, proof = stamped
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"verdict": {"ok": False}}))
    assert state(forge, proof) == (State.FAILED, "verdict.ok is false")
    path.write_text(json.dumps({"verdict": {"ok": True}}))
    assert state(forge, proof)[0] is State.UNSTAMPED
    path.unlink()
    assert state(forge, proof)[0] is State.MISSING
    path.write_text("[]")
    with pytest.raises(BadInput, match="no result"):
        state(forge, proof)


def test_a_result_is_stamped_with_the_tree_that_it_says_it_read_not_with_that_of_now(stamped):
    forge, path, proof = stamped
    edit_patch(forge)
    sources = Sources({"demo": upstream()}, forge.root)
    stamp.stamp(path, proof, sources, forge.git)  # again, from the old tree
    assert "demo:pkg/a.py changed" in state(forge, proof)[1]
    patch_the_pins(forge)
    stamp.stamp(path, proof, Sources({"demo": upstream()}, forge.root), forge.git)
    assert state(forge, proof)[1] == "demo:csrc/k.cu changed"


def test_a_result_is_stamped_with_the_files_of_a_commit(stamped):
    forge, path, proof = stamped
    git = ["git", "-C", forge.root, "-c", "user.name=x", "-c", "user.email=x@example.invalid"]
    for words in (["init", "-q"], ["add", "scripts"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    edit_script(forge)
    sources = Sources({"demo": upstream()}, forge.root)
    stamp.stamp(path, proof, sources, forge.git, commit="HEAD")
    assert state(forge, proof)[1] == "scripts/check.py changed"
    stamp.stamp(path, proof, sources, forge.git)
    assert state(forge, proof)[0] is State.FRESH
    add_script(forge)
    with pytest.raises(BadInput, match=r"more.py is not in commit HEAD"):
        stamp.stamp(path, proof, sources, forge.git, commit="HEAD")


@pytest.mark.parametrize(
    ("reads", "trees", "said"),
    [
        (("demo:pkg/typo.py",), {}, "demo:pkg/typo.py is not in the tree"),
        (("demo:pkg/a.py",), {"demo": "1" * 40}, "the store has no tree"),
        (("other:pkg/a.py",), {}, "no source is named other:"),
        (("demo:@V-09",), {}, "no source is named demo:@V-09"),
        (("scripts/typo.py",), {}, "no source is named scripts/typo.py"),
    ],
)
def test_a_stamp_refuses_what_is_not_there(stamped, reads, trees, said):
    forge, path, proof = stamped
    sources = Sources({"demo": upstream()}, forge.root)
    before = path.read_bytes()
    with pytest.raises(BadInput, match=said):
        stamp.stamp(path, msgspec.structs.replace(proof, reads=reads), sources, forge.git, trees=trees)
    assert path.read_bytes() == before


def test_a_result_that_names_no_tree_needs_one(stamped):
    forge, path, proof = stamped
    path.write_text("{}")
    with pytest.raises(BadInput, match="does not say which tree of demo"):
        stamp.stamp(path, proof, Sources({"demo": upstream()}, forge.root), forge.git)


@pytest.fixture
def checkout(stamped, monkeypatch):
    """The verbs at work on the small checkout."""
    forge, path, proof = stamped
    monkeypatch.setattr(verbs, "ROOT", forge.root)
    monkeypatch.setattr(verbs, "git_of", lambda kept: kept.git())
    monkeypatch.setattr(verbs, "listed", lambda: {"x.json": proof})
    monkeypatch.setattr(verbs, "rows", lambda sources: proofs.rows(sources, {"x.json": proof}, root=forge.root))
    monkeypatch.setattr(verbs.Sources, "of", lambda stack: Sources(stack.upstreams, forge.root))
    stack = msgspec.structs.replace(load_stack(), upstreams={"demo": upstream()})
    monkeypatch.setattr(command, "load_stack", lambda: stack)
    store = type("Kept", (), {"git": lambda _: forge.git})()
    monkeypatch.setattr(command.Store, "open", lambda: store)
    return forge, path


def test_the_list_names_what_repeats_a_stale_proof(checkout, capsys):
    forge, _ = checkout
    assert command.main([]) == 0
    assert "repeat with" not in capsys.readouterr().out
    edit_script(forge)
    assert command.main(["list"]) == 0
    said = capsys.readouterr().out
    assert "stale" in said
    assert f"x.json: repeat with\n    {PROOF.repeat}" in said


def test_a_result_is_stamped_by_its_path(checkout, capsys):
    forge, path = checkout
    edit_script(forge)
    assert command.main(["stamp", str(path)]) == 0
    assert "stale" not in verbs.table(command.load_stack())
    assert command.main(["stamp", str(path), "--tree", f"demo={'1' * 40}"]) == 2
    assert "the store has no tree" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stamp", "elsewhere.json"], "elsewhere.json is not listed"),
        (["stamp", "{x}", "--tree", "demo"], "'demo' names no tree"),
        (["stamp", "{x}", "--tree", "other=1"], "'other=1' names no tree"),
    ],
)
def test_wrong_words_are_sentences(checkout, capsys, words, said):
    _, path = checkout
    assert command.main([str(path) if word == "{x}" else word for word in words]) == 2
    assert said in capsys.readouterr().err


def test_a_verb_without_its_file_is_wrong_usage(checkout):
    for words in (["stamp"], ["list", "x.json"]):
        with pytest.raises(SystemExit):
            command.main(words)
