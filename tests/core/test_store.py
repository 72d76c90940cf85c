from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.core.hashing import key_of, sha256_bytes, verify_file
from sparkforge.core.integrity import seal, sound
from sparkforge.core.store import Store, write_file
from sparkforge.git.objects import NewCommit, write_commits
from sparkforge.git.of_store import git_of, sound_git


def test_a_result_appears_whole_or_not_at_all(store):
    def fails():
        with store.writing("things", "a") as folder:
            (folder / "half").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert not store.has("things", "a")
    assert not list((store.root / "things").iterdir())
    with store.writing("things", "a") as folder:
        (folder / "whole").write_text("x")
    assert store.path("things", "a").joinpath("whole").read_text() == "x"


def test_a_killed_writer_leaves_nothing_that_is_used_and_sweep_removes_the_rest(store):
    code = (
        "import sys, time; from pathlib import Path; from sparkforge.core.store import Store\n"
        f"with Store.open(Path({str(store.root)!r})).writing('things', 'a') as folder:\n"
        "    (folder / 'half').write_text('x'); print('now', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"now\n"
        assert store.sweep() == [], "what a living process writes is not swept"
        child.send_signal(signal.SIGKILL)
    assert not store.has("things", "a")
    assert len(store.sweep()) == 1
    with store.writing("things", "a") as folder:  # the lock went with the process
        (folder / "whole").write_text("x")
    assert [path.name for path in (store.root / "things").iterdir()] == ["a"]


def test_keys_stand_for_content_names_and_modes(tmp_path):
    (tmp_path / "d").mkdir()
    file = tmp_path / "d" / "f"
    file.write_text("1")
    first = key_of(tmp_path / "d")
    os.utime(file, (1, 1))
    assert key_of(tmp_path / "d") == first
    file.chmod(0o755)
    second = key_of(tmp_path / "d")
    file.rename(tmp_path / "d" / "g")
    assert len({first, second, key_of(tmp_path / "d")}) == 3
    with pytest.raises(CheckFailed):
        key_of(tmp_path / "lost")


def test_verification_is_remembered_until_the_file_changes(tmp_path):
    file = tmp_path / "f"
    file.write_text("right")
    digest = sha256_bytes(b"right")
    verify_file(file, digest, where="line 1")
    time.sleep(0.01)
    file.write_text("wrong")
    with pytest.raises(CheckFailed, match="not the pinned file"):
        verify_file(file, digest, where="line 1")


def test_a_damaged_result_is_named(store):
    with store.writing("things", "a") as folder:
        (folder / "f").write_text("right")
        seal(folder)
    folder = store.path("things", "a")
    assert sound(folder)
    assert sound(folder)
    (folder / "f").write_text("wrong")
    with pytest.raises(CheckFailed, match="damaged: f"):
        sound(folder)
    assert not sound(store.path("things", "b"))


def test_a_damaged_git_object_is_named(store):
    git = git_of(store)
    blob = git.text("hash-object", "-w", "--stdin", stdin=b"content " * 100)
    sound_git(store, git)
    loose = git.git_dir / "objects" / blob[:2] / blob[2:]
    loose.chmod(0o644)
    raw = bytearray(loose.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    loose.write_bytes(raw)
    with pytest.raises(CheckFailed, match="git repository is damaged"):
        sound_git(store, git)


def test_a_pack_is_read_again_only_when_it_changed(store, monkeypatch, capsys):
    git = git_of(store)
    write_commits(git, "", [NewCommit(b"one\n", {f"{n}": ("100644", b"%d" % n) for n in range(200)})])
    (pack,) = git.git_dir.glob("objects/pack/*.pack")

    def verified():
        with monkeypatch.context() as traced:
            traced.setenv("SPARKFORGE_TRACE", "1")
            sound_git(store, git)
        return "verify-pack" in capsys.readouterr().err

    assert verified()
    git.run("hash-object", "-w", "--stdin", stdin=b"new")
    assert not verified()
    pack.chmod(0o644)
    raw = bytearray(pack.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    pack.write_bytes(raw)
    with pytest.raises(CheckFailed, match="git repository is damaged"):
        sound_git(store, git)


def test_names_that_would_leave_the_store_are_refused(store):
    with pytest.raises(BadInput):
        store.path("things", "../x")


def test_write_file_replaces_whole(tmp_path):
    write_file(tmp_path / "a" / "b", b"1")
    write_file(tmp_path / "a" / "b", b"2", mode=0o755)
    assert (tmp_path / "a" / "b").read_bytes() == b"2"
    assert os.access(tmp_path / "a" / "b", os.X_OK)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_the_store_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKFORGE_STORE", str(tmp_path / "here"))
    assert Store.open().root == tmp_path / "here"
    monkeypatch.delenv("SPARKFORGE_STORE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert Store.open().root == tmp_path / "cache" / "sparkforge"
