"""The door to git: no setting of the user's reaches it, bytes stay bytes, and its failures are ours."""

from __future__ import annotations

import os

import pytest

from sparkforge.core.errors import CheckFailed, EnvironmentLacks
from sparkforge.git.objects import NewCommit, TreeEntry, changed, contents, entries, stage, staged, write_commits
from sparkforge.git.repository import Git

FILES = {
    "a.py": ("100644", b"one\n"),
    "bin/tool": ("100755", b"#!/bin/sh\n"),
    'odd "name"\\\n\x01.txt': ("100644", b"\r\n\0\xff"),
    "caf\udce9": ("100644", b"a name that is no UTF-8\n"),
}


@pytest.fixture
def git(tmp_path):
    return Git.init_bare(tmp_path / "store.git")


def test_commits_are_the_same_everywhere(git, tmp_path):
    first = NewCommit(b"one\n", FILES)
    second = NewCommit(
        b"two\n", {"a.py": None, "bin": ("100644", b"now a file")}, "J\u00fcrgen <j@x> Mon, 1 Sep 2025 12:00:00 +0200"
    )
    made = write_commits(git, "", [first, second])
    assert made == write_commits(Git.init_bare(tmp_path / "other.git"), "", [first, second])
    assert made[0].commit == git.text("commit-tree", made[0].tree, stdin=b"one\n")
    assert git.text("for-each-ref") == ""
    assert entries(git, made[0].tree).keys() == FILES.keys()
    assert entries(git, made[1].tree).keys() == FILES.keys() - {"a.py", "bin/tool"} | {"bin"}
    assert git.text("show", "-s", "--format=%an %aI %cn %cI", made[1].commit) == (
        "J\u00fcrgen 2025-09-01T12:00:00+02:00 Sparkforge 1970-01-01T00:00:00+00:00"
    )


def test_a_commit_upon_a_tree_has_no_parent(git):
    (base,) = write_commits(git, "", [NewCommit(b"one\n", FILES)])
    upon_tree, upon_commit = (
        write_commits(git, start, [NewCommit(b"two\n", {"b": ("100644", b"")})])[0]
        for start in (base.tree, base.commit)
    )
    assert upon_tree.tree == upon_commit.tree
    assert git.text("rev-list", "--count", upon_tree.commit) == "1"
    assert git.text("rev-list", "--count", upon_commit.commit) == "2"


def test_contents_and_differences_keep_every_byte(git):
    one, two = write_commits(
        git, "", [NewCommit(b"1\n", FILES), NewCommit(b"2\n", {"a.py": None, "b": ("100644", b"b")})]
    )
    listed = entries(git, one.tree)
    held = contents(git, [entry.blob for entry in listed.values()] + [f"{one.tree}:none", one.tree])
    assert {path: held[entry.blob] for path, entry in listed.items()} == {
        path: data for path, (_, data) in FILES.items()
    }
    assert held[f"{one.tree}:none"] is None
    assert held[one.tree] is None
    assert changed(git, one.tree, two.tree) == {
        "a.py": (listed["a.py"], None),
        "b": (None, TreeEntry("100644", entries(git, two.tree)["b"].blob, "b")),
    }


def test_a_temporary_index_leaves_nothing(git):
    (base,) = write_commits(git, "", [NewCommit(b"one\n", FILES)])
    with git.staged(base.tree) as (index, folder):
        assert staged(index) == entries(git, base.tree)
        assert index.text("write-tree") == base.tree
    with git.staged() as (index, _):
        stage(index, entries(git, base.tree).values())
        assert index.text("write-tree") == base.tree
    assert not folder.exists()
    assert not (git.git_dir / "index").exists()


def test_the_users_settings_reach_no_command(git, tmp_path, monkeypatch):
    config = tmp_path / "config"
    config.write_text("[core]\n\tautocrlf = true\n[user]\n\tname = Somebody\n")
    (base,) = write_commits(git, "", [NewCommit(b"one\n", FILES)])
    for name, value in {
        "GIT_CONFIG_GLOBAL": str(config),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.autocrlf",
        "GIT_CONFIG_VALUE_0": "true",
        "GIT_AUTHOR_NAME": "Somebody",
        "GIT_DIR": "/nowhere",
        "GIT_INDEX_FILE": "/nowhere/index",
        "GIT_OBJECT_DIRECTORY": "/nowhere",
        "GIT_WORK_TREE": "/nowhere",
    }.items():
        monkeypatch.setenv(name, value)
    assert git.text("config", "core.autocrlf") == "false"
    assert git.text("var", "GIT_AUTHOR_IDENT") == "Sparkforge <sparkforge@localhost> 0 +0000"
    with git.staged(base.tree) as (index, _):
        assert index.text("write-tree") == base.tree
    for name in ("GIT_DIR", "GIT_OBJECT_DIRECTORY", "GIT_CONFIG_COUNT"):
        monkeypatch.setenv(name, "/nowhere")
    with git.repo() as repo:
        assert repo.commit(base.commit).message == "one\n"
    assert "GIT_DIR" not in os.environ


def test_a_failure_is_ours_and_shows_the_command(git):
    with pytest.raises(CheckFailed, match="git ended with status 128") as failed:
        git.run("cat-file", "blob", "nonsense")
    assert f"git --git-dir={git.git_dir} cat-file blob nonsense" in failed.value.why
    assert "Not a valid object name" in failed.value.why
    assert git.done("cat-file", "blob", "nonsense", check=False).code == 128
    assert git.id("nonsense") == ""
    assert not git.has("nonsense")


def test_a_machine_without_git_is_told(git, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EnvironmentLacks, match="git is not installed"):
        git.run("status")


def test_a_command_can_be_traced(git, monkeypatch, capsys):
    monkeypatch.setenv("SPARKFORGE_TRACE", "1")
    git.has("HEAD")
    assert capsys.readouterr().err == f"+ git --git-dir={git.git_dir} cat-file -e HEAD\n"
