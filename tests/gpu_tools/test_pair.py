"""Two GPUs: jobs take them by turns, and one server takes both. Runs anywhere."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "gpu" / "vllm"))

import pool as pools
import pytest
import run_all
from judge import Judge
from pool import Ended, Job, Pool
from sections import SERVERS, Sections

WORDS = ["--json", "x.json", "--only", "server"]
WAYS = {name: {"asked": 4, "wrong": 0, "pieces": 9} for name in ("whole", "streamed", "many at once")}


def seen(tmp_path, monkeypatch, devices):
    """Which GPUs three jobs saw, the last of which asks for two."""
    (tmp_path / "say.py").write_text(
        "import os, pathlib, sys\npathlib.Path(sys.argv[1]).write_text(os.environ.get('CUDA_VISIBLE_DEVICES', 'all'))\n"
    )
    monkeypatch.setattr(pools, "HERE", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    one = Pool(tmp_path, width=1, until=time.monotonic() + 60, env={}, devices=devices)
    names = ("a", "b", "c")
    jobs = [Job(name, "say.py", [str(tmp_path / name)]) for name in names]
    one.run([*jobs, Job("pair", "say.py", [str(tmp_path / "pair")], env={"CUDA_VISIBLE_DEVICES": "0,1"})])
    return [(tmp_path / name).read_text() for name in (*names, "pair")]


def test_two_gpus_are_taken_by_turns(tmp_path, monkeypatch):
    assert seen(tmp_path, monkeypatch, 2) == ["0", "1", "0", "0,1"]


def test_one_gpu_is_left_as_it_is(tmp_path, monkeypatch):
    assert seen(tmp_path, monkeypatch, 1)[:3] == ["all", "all", "all"]


def test_servers_of_a_plan(tmp_path, monkeypatch):
    monkeypatch.setattr(run_all.Prompts, "with_chats", lambda self, vocab: self)  # a tokenizer makes them
    alone, pair = (run_all.Run(run_all.words([*WORDS, *more]), tmp_path).plan() for more in ([], ["--gpus", "2"]))
    assert [job.name for job in alone if job.script == "server.py"] == ["server.F.default"]
    (job,) = [job for job in pair if job.name == "server.F.tp2"]
    assert job.env["CUDA_VISIBLE_DEVICES"] == "0,1"
    flags = json.loads(Path(job.arguments()[0]).read_text())["flags"]
    assert "--tensor-parallel-size=2" in flags


@pytest.mark.parametrize(("gpus", "wrong", "verdict"), [(1, 0, "not run"), (2, 0, "right"), (2, 1, "wrong")])
def test_verdict_on_the_pair(tmp_path, gpus, wrong, verdict):
    one = Pool(tmp_path, width=1, until=0, env={})
    for name, _, _ in SERVERS:
        found = {**WAYS, "streamed": {**WAYS["streamed"], "wrong": wrong if "tp2" in name else 0}, "exit": 0}
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
        one.ended[name] = Ended("done")
    judge = Judge(one)
    Sections(one, None, argparse.Namespace(gpus=gpus), {}, kernels=False)._servers(judge)
    assert [check.verdict for check in judge.checks] == ["right", verdict]
