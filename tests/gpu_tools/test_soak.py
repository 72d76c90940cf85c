"""Soaks: which paths are asked for, how long they go on, and what is demanded of them. Runs anywhere."""

from __future__ import annotations

import importlib
import json
import sys
import time
import types
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "gpu" / "vllm"))

import run_all
import sections
import verdicts
from judge import Judge
from plan import Engines, Prompts
from pool import Ended, Pool

CATALOGUE = [{"prompt": [n], "tokens": 2, "reply": [n, n]} for n in range(1, 9)]


@pytest.fixture
def soak(monkeypatch):
    """The module with vLLM's two names and a watcher that counts what the engine here counts."""
    vllm, params = types.ModuleType("vllm"), types.ModuleType("vllm.sampling_params")
    vllm.SamplingParams = lambda **more: types.SimpleNamespace(clone=lambda: types.SimpleNamespace(**more))
    params.RequestOutputKind = types.SimpleNamespace(FINAL_ONLY=2)
    torch = types.ModuleType("torch")
    for name, module in (("vllm", vllm), ("vllm.sampling_params", params), ("torch", torch)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "watch", raising=False)
    monkeypatch.delitem(sys.modules, "soak", raising=False)
    found = importlib.import_module("soak")
    yield found
    del sys.modules["soak"], sys.modules["watch"]


class Engine:
    """Answers a request two steps after it came; a step is two replays and a change of the batch."""

    def __init__(self, watch, wrong=()):
        self.watch, self.wrong, self.waiting, self.came = watch, wrong, [], 0
        self.llm_engine = self.vllm_config = self.compilation_config = self
        self.cudagraph_mode, self.counted = "CUDAGraphMode.PIECEWISE", "steps PIECEWISE"

    def _preprocess_cmpl(self, prompts):
        return prompts

    def add_request(self, name, prompt, params):
        self.came += 1
        self.waiting.append([name, prompt["prompt_token_ids"], 2, self.came])

    def step(self):
        self.watch.COUNTS["replays"] += 2
        self.watch.COUNTS[self.counted] += 1
        self.watch.COUNTS["compositions"] += 1
        time.sleep(0.0005)
        for one in self.waiting:
            one[2] -= 1
        done = [one for one in self.waiting if one[2] == 0]
        self.waiting = [one for one in self.waiting if one[2]]
        return [self._said(*one) for one in done]

    def _said(self, name, prompt, _, came):
        reply = [0, 0] if came in self.wrong else prompt * 2
        return types.SimpleNamespace(request_id=name, finished=True, outputs=[types.SimpleNamespace(token_ids=reply)])


def run(soak, engine, **step):
    return soak.soak(engine, {"catalogue": CATALOGUE, "seed": 3, **step}, {})


def test_a_soak_lasts_as_long_as_it_was_asked_to(soak):
    found = run(soak, Engine(soak.watch), seconds=0.3)
    assert 0.3 <= found["seconds"] < 2
    assert found["equal"] == found["requests"] > 10
    assert (found["differing"], found["failed"]) == (0, None)


@pytest.mark.parametrize(
    ("mode", "counted"), [("FULL_AND_PIECEWISE", "replays FULL"), ("PIECEWISE", "steps PIECEWISE")]
)
def test_a_soak_ends_when_it_has_what_was_asked(soak, mode, counted):
    """Replays of graphs that hold attention; where none is captured, steps that replay pieces."""
    soak.watch.COUNTS[counted] = 1000  # of steps before it
    engine = Engine(soak.watch)
    engine.cudagraph_mode, engine.counted = f"CUDAGraphMode.{mode}", counted
    found = run(soak, engine, seconds=20, least={"replays": 50, "compositions": 60})
    assert found["seconds"] < 5
    assert 60 <= found["compositions"] < 80
    assert found["equal"] == found["requests"]


def test_a_soak_ends_at_its_time_of_day_and_its_last_requests_with_it(soak):
    engine = Engine(soak.watch)
    found = run(soak, engine, seconds=20, until=time.time() + 0.2, least={"replays": 10**9})
    assert found["seconds"] < 5
    assert engine.waiting == []
    assert found["requests"] == found["equal"]


def test_a_wrong_reply_is_counted_and_kept(soak):
    found = run(soak, Engine(soak.watch, wrong=(5, 6)), seconds=0.2)
    assert found["differing"] == 2
    assert [one["reply"] for one in found["kept"]] == [[0, 0]] * len(found["kept"])


@pytest.fixture
def pool(tmp_path):
    return Pool(tmp_path, width=2, until=time.monotonic() + 60, env={})


@pytest.mark.parametrize(
    ("least", "verdict"),
    [
        ({}, "right"),
        ({"replays": 40, "compositions": 7}, "right"),
        ({"replays": 41}, "wrong"),  # pieces hold no attention: theirs do not count
        ({"replays": 40, "compositions": 8}, "wrong"),
        ({"mixed": 1}, "wrong"),
    ],
)
def test_fewer_than_were_asked_for_is_wrong(pool, least, verdict):
    counts = {"replays": 100, "replays FULL": 40, "replays PIECEWISE": 60, "uniform": 40, "other small": 12}
    told = {"soak": {**counts, "compositions": 7, "equal": 9, "differing": 0, "failed": None}}
    (pool.folder / "S.X.T.default.json").write_text(json.dumps(told | {"graphs": "CUDAGraphMode.FULL_AND_PIECEWISE"}))
    pool.ended["S.X.T.default"] = Ended("done")
    judge = Judge(pool)
    verdicts.soak(judge, "S.X.T.default", least)
    assert judge.checks[-1].verdict == verdict


def test_every_path_is_soaked_where_none_is_named():
    asked = run_all.words(["--json", "x.json"])
    assert (asked.soaks, asked.least, asked.only) == (list(sections.SOAKS), {}, list(sections.SECTIONS))
    assert "--soaks" not in run_all._options(asked)


def test_the_command_says_which_paths_and_how_much_of_each():
    said = ["--json", "x.json", "--only", "soak", "--soaks", "S.X.T.default,S.X.F.default", "--soak-replays", "200000"]
    asked = run_all.words([*said, "--soak-compositions", "10000"])
    assert asked.soaks == ["S.X.T.default", "S.X.F.default"]
    assert asked.least == {"replays": 200_000, "compositions": 10_000}
    told = " ".join(run_all._options(asked))
    assert "--only soak --soaks S.X.T.default,S.X.F.default --soak-replays 200000 --soak-compositions 10000" in told


@pytest.mark.parametrize(
    "said",
    [
        ["--soaks", "S.X.Z.default"],
        ["--only", "soaks"],
        ["--soak-replays", "-1"],
        ["--only", "dense", "--soak-replays", "9"],
        ["--only", "sharp", "--soaks", "S.X.T.default"],
    ],
)
def test_words_that_mean_nothing_are_refused(said, capsys):
    with pytest.raises(SystemExit, match="2"):
        run_all.words(["--json", "x.json", *said])
    assert "error:" in capsys.readouterr().err


def test_the_paths_named_are_run_with_what_is_asked_of_them_and_no_others(tmp_path, monkeypatch):
    said = ["--json", "x.json", "--only", "soak", "--soaks", "S.X.T.default,S.X.K.real.default", "--soak-replays", "7"]
    asked = run_all.words(said)
    monkeypatch.delenv("SPARKFORGE_KERNELS_SITE", raising=False)
    monkeypatch.setattr(Prompts, "with_chats", lambda self, _: self)
    made = run_all.Run(asked, tmp_path)
    jobs = {job.name: job for job in made.plan() if job.name.startswith("S.")}
    assert list(jobs) == ["S.X.T.default"]
    (path,) = jobs["S.X.T.default"].arguments()
    (step,) = json.loads(Path(path).read_text())["steps"]
    assert step["least"] == {"replays": 7}
    assert 0 < step["until"] - time.time() < asked.minutes * 60
    judged = sections.Sections(made.pool, made.prompts, asked, {}, kernels=False).checks()
    assert [(one.name, one.verdict) for one in judged if "real" in one.name] == [("S.X.K.real.default", "not run")]
    assert all(one.verdict != "right" for one in judged)


def test_pieces_count_by_steps_where_no_attention_is_captured(pool):
    counts = {"replays PIECEWISE": 500, "steps PIECEWISE": 100, "uniform": 40, "other small": 12}
    told = {"soak": {**counts, "equal": 9, "differing": 0, "failed": None}, "graphs": "CUDAGraphMode.PIECEWISE"}
    (pool.folder / "S.X.F.ngram.default.json").write_text(json.dumps(told))
    pool.ended["S.X.F.ngram.default"] = Ended("done")
    for least, verdict in ((100, "right"), (101, "wrong")):
        judge = Judge(pool)
        verdicts.soak(judge, "S.X.F.ngram.default", {"replays": least})
        assert judge.checks[-1].verdict == verdict


def test_each_engine_runs_on_the_model_that_was_fitted_for_its_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(Prompts, "with_chats", lambda self, _: self)
    monkeypatch.setenv("SPARKFORGE_KERNELS_SITE", "somewhere")
    made = run_all.Run(run_all.words(["--json", "x.json", "--only", "sharp,soak"]), tmp_path)
    jobs = {job.name: job for job in made.plan() if job.name.startswith(("X.", "S."))}
    assert {"X.T.fp8.faults.eager", "S.X.F.fp8.default", "X.T.eager"} <= set(jobs)
    for name, job in jobs.items():
        fit = "sharp8" if "fp8" in name else "sharp"
        assert job.needs[0] == fit, name
        job_file = json.loads(Path(job.arguments()[0]).read_text())
        assert job_file["model"].endswith(f"tiny/{fit}/mxfp4")
        if name.startswith("S."):
            assert ("at_once" in job_file["steps"][0]) == ("ngram" in name)
    fits = {job.name: job for job in made.plan() if job.name.startswith("sharp")}
    assert [len(fits[name].needs) for name in ("sharp", "sharp8")] == [1, 2]


def test_two_soaks_of_one_run_differ_in_their_seed(pool):
    engines = Engines(pool, Path("/nowhere"), Prompts(2048), {}, made="sharp")
    seeds = set()
    for number in range(2):
        (path,) = engines.soaking(f"S.X.T.{('default', 'full')[number]}", 20, number).arguments()
        seeds.add(json.loads(Path(path).read_text())["steps"][0]["seed"])
    assert len(seeds) == 2


def test_xqa_is_run_where_it_is_named_and_nowhere_else(tmp_path, monkeypatch):
    monkeypatch.setattr(Prompts, "with_chats", lambda self, _: self)
    asked = run_all.words(["--json", "x.json", "--only", "xqa,soak", "--soaks", "S.X.Q.default"])
    jobs = {job.name: job for job in run_all.Run(asked, tmp_path).plan()}
    assert {"jit.xqa", "X.F.eager", "X.Q.eager", "X.Q.default", "S.X.Q.default"} <= set(jobs)
    assert jobs["X.Q.default"].env == {"VLLM_FLASHINFER_XQA_DECODE": "1"}
    assert jobs["X.Q.default"].needs == ("sharp", "jit", "jit.xqa")
    assert jobs["X.F.eager"].env == {}
    (path,) = jobs["X.Q.default"].arguments()
    job = json.loads(Path(path).read_text())
    assert (job["open_gate"], job["llm"]["attention_config"]) == (True, {"backend": "FLASHINFER"})
    plain = run_all.Run(run_all.words(["--json", "x.json"]), tmp_path).plan()
    assert not [one.name for one in plain if "Q" in one.name.split(".") or "xqa" in one.name]


@pytest.mark.parametrize(("calls", "verdict"), [(4, "right"), (0, "wrong")])
def test_an_engine_that_never_called_xqa_is_wrong(pool, calls, verdict):
    replies = [[1, 2], [3, 4]]
    told = {"main": {"replies": replies}, "mixed": {"replies": []}, "graphs": "CUDAGraphMode.NONE", "xqa": calls}
    for name, one in (("X.Q.eager", told), ("sharp", {"spread": 2.5})):
        (pool.folder / f"{name}.json").write_text(json.dumps(one))
        pool.ended[name] = Ended("done")
    judge = Judge(pool)
    verdicts.known(judge, "XQA", "X.Q.eager", "X.F.eager", replies, section="xqa")
    assert (judge.checks[-1].section, judge.checks[-1].verdict) == ("xqa", verdict)
