"""The command line as a person types it: statuses, sentences, no tracebacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkforge.core.paths import ROOT

INVOKE = Path(sys.executable).parent / "invoke"


def typed(*words, **env):
    done = subprocess.run(
        [INVOKE, *words], cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("nonsense",), 2, "invoke --list"),
        (("build", "--bogus"), 2, "invoke --help build"),
        (("--help", "nonsense"), 2, "No idea what 'nonsense' is"),
        (("patches.edit",), 2, "required positional"),
        (("build", "--arch", "121f"), 2, "--arch 12.1f"),
        (("build", "--target", "gpu"), 2, "choices: serve, cpu"),
        (("build", "--stack", "vllm-9"), 2, "stacks: vllm-0.21"),
        (("smoke", "--venv", "/nowhere"), 2, "is not a virtual environment with vLLM"),
        (("smoke", "--against", "x"), 2, "invoke --help smoke"),
        (("overlay", "--into", "/nowhere", "--revert"), 2, "not a virtual environment"),
        (("serve", "--profile", "fast"), 2, "profiles: gpt-oss-120b-eagle3"),
    ],
)
def test_a_status_and_a_sentence(words, status, said, tmp_path):
    done = typed(*words, SPARKFORGE_STORE=str(tmp_path))
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert done.stdout == ""


def test_a_store_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    done = typed("build", "--dry-run", SPARKFORGE_STORE=str(tmp_path / "file" / "store"))
    assert done.returncode == 3
    assert "SPARKFORGE_STORE" in done.stderr


def test_a_machine_without_an_engine_is_told_what_to_do(tmp_path):
    path = tmp_path / "bin"
    path.mkdir()
    for name in ("git", "env"):
        (path / name).symlink_to(f"/usr/bin/{name}")
    words = ("build", "--dry-run", "--engine", "buildah")
    done = typed(*words, SPARKFORGE_STORE=str(tmp_path / "store"), PATH=str(path))
    assert done.returncode == 3
    assert "buildah" in done.stderr
    assert "invoke setup" in done.stderr


def test_every_task_is_listed_with_a_line():
    listed = typed("--list").stdout
    names = ("backends", "build", "lock", "overlay", "profiles", "serve", "setup", "smoke", "test")
    for name in (*names, "kernels.audit", "patches.prove"):
        assert f"  {name}  " in listed
