"""The judge on answers made up here: it passes what is right and names each fault. Runs anywhere, with NumPy alone."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "gpu" / "vllm"))

import judge as judging
import rules
import verdicts
from judge import Judge
from pool import Ended, Job, Pool
from run_all import _without
from sections import SECTIONS, table

PROMPTS = [[1, 2, 3], [4, 5]]
REPLIES = [[7, 8, 9, 10], [11, 12, 13, 14]]


@pytest.fixture
def pool(tmp_path):
    """A pool whose jobs have ended already."""
    return Pool(tmp_path, width=2, until=time.monotonic() + 60, env={})


def ended(pool, name, result, **arrays):
    """An engine that has written its results."""
    pool.ended[name] = Ended("done")
    (pool.folder / f"{name}.json").write_text(json.dumps(result))
    np.savez(pool.folder / f"{name}.npz", **arrays)


def answered(pool, name, replies, **counts):
    ended(pool, name, {"main": {"replies": replies, **counts}, "mixed": {"replies": []}, "graphs": "x"})


def scored(pool, judge, replies, regret=0.0):
    """The twin has judged these replies; every place has that regret, in spreads."""
    sequences = [{"prompt": prompt, "reply": reply} for prompt, reply in zip(PROMPTS, replies, strict=True)]
    arrays = {}
    for number, one in enumerate(sequences):
        arrays[f"judged.{number}.regret"] = np.full(len(one["reply"]), regret * 2.0)
        arrays[f"judged.{number}.spread"] = np.full(len(one["reply"]), 2.0)
    ended(pool, "score", {}, **arrays)
    judge.take_scores("score", sequences)


def test_equal_tokens_with_replays_are_right(pool):
    answered(pool, "T.eager", REPLIES)
    answered(pool, "T.full", REPLIES, replays=12)
    judge = Judge(pool)
    judge.tokens("graphs", "full", "T.full", "T.eager", PROMPTS)
    assert judge.checks[-1].verdict == "right"


@pytest.mark.parametrize(("uniform", "verdict"), [(5, "wrong"), (0, "right")])
def test_graphs_that_were_never_replayed_are_wrong_where_they_could_be(pool, uniform, verdict):
    """n-gram: a request without a draft makes the batch no uniform one, and a whole graph takes only those."""
    answered(pool, "T.eager", REPLIES)
    answered(pool, "T.full", REPLIES, replays=0, uniform=uniform)
    judge = Judge(pool)
    judge.tokens("graphs", "full", "T.full", "T.eager", PROMPTS)
    assert judge.checks[-1].verdict == verdict


@pytest.mark.parametrize(
    ("regret", "verdict"), [(0.004, "right"), (0.006, "wrong"), (0.9, "wrong"), (float("nan"), "wrong")]
)
def test_other_tokens_are_right_only_as_near_ties(pool, regret, verdict):
    other = [[7, 8, 9, 99], REPLIES[1]]
    answered(pool, "T.eager", REPLIES)
    answered(pool, "T.full", other, replays=12)
    judge = Judge(pool)
    scored(pool, judge, other, regret)
    judge.tokens("graphs", "full", "T.full", "T.eager", PROMPTS)
    assert judge.checks[-1].verdict == verdict
    assert "1 of 2 replies equal T.eager's" in judge.checks[-1].said


def test_other_tokens_that_nobody_judged_are_wrong(pool):
    answered(pool, "T.eager", REPLIES)
    answered(pool, "T.full", [[7, 8, 9, 99], REPLIES[1]], replays=12)
    judge = Judge(pool)
    judge.tokens("graphs", "full", "T.full", "T.eager", PROMPTS)
    assert judge.checks[-1].verdict == "wrong"


@pytest.mark.parametrize(("off", "verdict"), [(0.3, "right"), (3.0, "wrong"), (float("nan"), "wrong")])
def test_logits_of_the_probe(pool, off, verdict):
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((40, 64)) * 2
    noise = generator.standard_normal((40, 64)) * off * rules.LIMITS["logit rms"] * 2
    ended(pool, "one", {}, **{"probe.0.logits": rows + noise})
    ended(pool, "other", {}, **{"probe.0.logits": rows})
    judge = Judge(pool)
    judge.logits("attention", "probe", "one", "other", "logit rms")
    assert judge.checks[-1].verdict == verdict


def test_greedy_regret(pool):
    answered(pool, "T.eager", REPLIES)
    judge = Judge(pool)
    pairs = list(zip(PROMPTS, REPLIES, strict=True))
    for regret, verdict in ((0.001, "right"), (0.1, "wrong"), (2.0, "wrong")):
        scored(pool, judge, REPLIES, regret)
        judge.regrets_of("e2e_dense", "regret", "T.eager", pairs)
        assert judge.checks[-1].verdict == verdict


def test_a_job_that_failed_is_wrong_and_says_why(pool):
    pool.ended["T.eager"] = Ended("failed", 3.0, ("ValueError: no such backend",))
    judge = Judge(pool)
    assert judge.missing("graphs", "full", "T.eager")
    assert judge.checks[-1].verdict == "wrong"
    assert "no such backend" in judge.checks[-1].said


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ({}, "right"),
        ({"of the bound": 1.2}, "wrong"),
        ({"graph equals eager": False}, "wrong"),
        ({"finite": False}, "wrong"),
        ({"kernel": "Marlin"}, "wrong"),
    ],
)
def test_layers(pool, fault, verdict):
    good = {"of the bound": 0.5, "relative": 0.002, "finite": True, "runs equal": True, "graph equals eager": True}
    runs = {"4": good | {"kernel": "decode"} | fault, "64": good | {"kernel": "Marlin"}}
    judge = Judge(pool)
    judging.products(judge, "decode_kernels", {"qkv": runs}, decode=True)
    assert judge.checks[-1].verdict == verdict


@pytest.mark.parametrize(("ran", "verdict"), [(200, "right"), (199, "wrong"), (0, "wrong")])
def test_kernels_must_run_as_often_in_graphs_as_eager(pool, ran, verdict):
    ended(pool, "K.fake.eager", {"main": {"ran dense": 200, "called dense": 200}})
    ended(pool, "K.fake.full", {"main": {"ran dense": ran, "called dense": 20}})
    judge = Judge(pool)
    judging.kernels(judge, "decode_kernels", "ran", "K.fake.full", "K.fake.eager")
    assert judge.checks[-1].verdict == verdict


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ({}, "right"),
        ({"failed": "RuntimeError: illegal memory access"}, "wrong"),
        ({"replays FULL": 0}, "wrong"),
        ({"replays FULL": 39}, "wrong"),
        ({"replays PIECEWISE": 0}, "wrong"),
        ({"differing": 1}, "wrong"),
        ({"equal": 0}, "wrong"),
    ],
)
def test_a_soak(pool, fault, verdict):
    good = {
        "replays FULL": 40, "replays PIECEWISE": 60, "uniform": 40, "other small": 12, "equal": 9, "differing": 0,
        "failed": None, "graph of 4 tokens": 40,
    }  # fmt: skip
    ended(pool, "S.X.T.default", {"soak": good | fault, "graphs": "CUDAGraphMode.FULL_AND_PIECEWISE"})
    judge = Judge(pool)
    verdicts.soak(judge, "S.X.T.default")
    assert judge.checks[-1].verdict == verdict


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        ({}, "right"),
        ({"replays FULL": 0, "uniform": 0}, "wrong"),
        ({"uniform": 30}, "wrong"),
        ({"drafted": 0}, "wrong"),
        ({"replies": [[7, 8, 9, 10], [11, 12, 13, 99]]}, "wrong"),
    ],
)
def test_every_token_of_the_fitted_model(pool, steps, verdict):
    """n-gram in whole graphs: as many replays as uniform batches, and at least one."""
    good = {"replies": REPLIES, "replays FULL": 29, "replays PIECEWISE": 0, "uniform": 29, "drafted": 9}
    told = {"main": good | steps, "mixed": {"replies": []}, "graphs": "CUDAGraphMode.FULL_DECODE_ONLY"}
    ended(pool, "X.T.ngram.full", told)
    ended(pool, "sharp", {"spread": 2.5})
    judge = Judge(pool)
    verdicts.known(judge, "n-gram", "X.T.ngram.full", "X.T.eager", REPLIES)
    assert judge.checks[-1].verdict == verdict


@pytest.mark.parametrize(
    ("lead", "moved", "verdict"), [(2.0, 0.05, "right"), (0.1, 0.05, "wrong"), (9.0, 0.3, "wrong")]
)
def test_logits_of_the_fitted_model(pool, lead, moved, verdict):
    tops = np.array([[lead, 0.0]] * 8)
    told = {"main": {"replies": REPLIES}, "mixed": {"replies": []}, "graphs": "CUDAGraphMode.NONE"}
    ended(pool, "sharp", {"spread": 1.0})
    ended(pool, "X.T.eager", told, **{"main.0.logits": tops})
    ended(pool, "X.T.compiled", told, **{"main.0.logits": tops + np.array([moved, 0.0])})
    judge = Judge(pool)
    verdicts.known(judge, "compiled", "X.T.compiled", "X.T.eager", REPLIES)
    assert judge.checks[-1].verdict == verdict


@pytest.mark.parametrize(
    ("kind", "changed", "moved", "verdict"),
    [
        ("o shifted", (True, True), 0.0, "right"),
        ("o shifted", (True, False), 0.5, "wrong"),  # a large fault must change tokens in each layer
        ("sinks gone", (True, False), 0.5, "right"),  # a small one may be seen in the leads alone
        ("sinks gone", (True, False), 0.02, "wrong"),  # in each layer, and not in any
        ("sinks gone", (False, False), 0.02, "wrong"),
    ],
)
def test_a_fault_must_be_found_in_each_layer(pool, kind, changed, moved, verdict):
    """By tokens, or by leads that move by more than rounding moves them."""
    lead = np.array([[1.0, 0.0]] * 4)
    arrays = {f"healed.{number}.logits": lead for number in range(2)}
    replies = {}
    for layer, hit in enumerate(changed):
        replies[f"{kind}, layer {layer}"] = [[1, 2, 3, 4], REPLIES[1]] if hit else REPLIES
        for number in range(2):
            arrays[f"{kind}, layer {layer}.{number}.logits"] = lead + np.array([0.0 if hit else moved, 0.0])
    ended(pool, "sharp", {"spread": 1.0})
    ended(pool, "X.T.faults.eager", {"planted": {"faults": replies, "healed": REPLIES}}, **arrays)
    judge = Judge(pool)
    verdicts.planted(judge, "X.T.faults.eager", REPLIES)
    assert [check.verdict for check in judge.checks] == [verdict, "right"]


def test_a_fault_that_stays_is_wrong(pool):
    ended(pool, "sharp8", {"spread": 1.0})
    ended(pool, "X.T.fp8.faults.eager", {"planted": {"faults": {}, "healed": [[0] * 4] * 2}})
    judge = Judge(pool)
    verdicts.planted(judge, "X.T.fp8.faults.eager", REPLIES)
    assert [(check.name, check.verdict) for check in judge.checks] == [("FP8 KV, faults taken back", "wrong")]


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ({}, "right"),
        ({"captured anew": 0}, "wrong"),
        ({"captures beside FULL": 0}, "wrong"),
        ({"wrong: captured now, tactic": 1}, "wrong"),
        ({"wrong: owner freed": 3}, "wrong"),
        ({"replays FULL": 0, "replays not watched": 9}, "wrong"),
    ],
)
def test_what_graphs_hold(pool, counts, verdict):
    good = {"captured anew": 80, "captures beside FULL": 20, "replays FULL": 500}
    soaked = {"differing": 0, "failed": None}
    told = {"counts": good | counts, "soak": soaked, "planted": {"nothing": [], "a": ["x"]}}
    ended(pool, "C.X.T.default", {"recorded": told})
    judge = Judge(pool)
    verdicts.captured(judge, "C.X.T.default")
    assert [check.verdict for check in judge.checks] == [verdict, "right"]


WAY = {"asked": 20, "wrong": 0, "pieces": 40}


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ({}, "right"),
        ({"exit": 1}, "wrong"),
        ({"streamed": WAY | {"wrong": 1}}, "wrong"),
        ({"whole": WAY | {"asked": 0}}, "wrong"),
        ({"streamed": WAY | {"pieces": 20}}, "wrong"),
        ({"many at once": {}}, "wrong"),
    ],
)
def test_the_server(pool, fault, verdict):
    ended(pool, "server.F.default", {"whole": WAY, "streamed": WAY, "many at once": WAY, "exit": 0} | fault)
    judge = Judge(pool)
    verdicts.server(judge, "server.F.default")
    assert judge.checks[-1].verdict == verdict


CUTLASS = {
    "counts": {"replays": 9, "captures beside": 2}, "wrong": 0, "worst": {"eager": 0.001, "reference": 0.005},
    "differing tactics": [],
    "planted": {"nothing": [], "a word that is read": ["x"], "weights that move": ["x"], "freed": 1},
    "holes": {"graphs": 8, "graphs whose outputs stay with all holes scribbled": 8, "graphs whose outputs repeat": 8,
              "clones run": 3},
}  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ({}, "right"),
        ({"wrong": 1}, "wrong"),
        ({"worst": {"eager": 0.03}}, "wrong"),
        ({"worst": {"eager": float("nan")}}, "wrong"),
        ({"differing tactics": ["x"]}, "wrong"),
        ({"holes": CUTLASS["holes"] | {"graphs whose outputs stay with all holes scribbled": 7}}, "wrong"),
        ({"counts": {"replays": 9}}, "wrong"),
    ],
)
def test_cutlass_in_graphs(pool, fault, verdict):
    ended(pool, "cutlass", CUTLASS | fault)
    judge = Judge(pool)
    verdicts.cutlass(judge)
    assert [check.verdict for check in judge.checks] == [verdict, "right"]


@pytest.mark.parametrize(
    ("told", "verdict"),
    [
        ({"nothing": [], "a": ["x"]}, "right"),
        ({"nothing": ["x"], "a": ["x"]}, "wrong"),
        ({"nothing": [], "a": []}, "wrong"),
        ({"nothing": []}, "wrong"),
        ({"a": ["x"]}, "wrong"),
    ],
)
def test_what_was_planted_must_be_seen(pool, told, verdict):
    judge = Judge(pool)
    verdicts.spoilt(judge, "C", told)
    assert judge.checks[-1].verdict == verdict


def test_the_pool_outlives_jobs_that_fail_or_hang(pool, tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("raise ValueError('on purpose')")
    hang = tmp_path / "hang.py"
    hang.write_text("import time; time.sleep(60)")
    fine = tmp_path / "fine.py"
    fine.write_text("print('fine')")
    jobs = [
        Job("wrong", str(wrong)),
        Job("hang", str(hang), limit=1),
        Job("fine", str(fine), after=("wrong", "hang")),
        Job("needy", str(fine), needs=("wrong",)),
    ]
    pool.run(jobs)
    assert {name: one.state for name, one in pool.ended.items()} == {
        "wrong": "failed",
        "hang": "timeout",
        "fine": "done",
        "needy": "skipped",
    }
    assert "on purpose" in pool.ended["wrong"].last[-1]


@pytest.mark.parametrize(("wrong", "lines"), [(0, 42), (10, 42), (60, 60)])
def test_the_table_is_short_and_hides_nothing_wrong(wrong, lines):
    checks = [
        judging.Check(SECTIONS[n % len(SECTIONS)], f"check {n}", "judged", "said", {"n": n}, [("n", ">=", wrong)])
        for n in range(60)
    ]
    shown = table(checks)
    assert len(shown) <= lines
    assert sum(" wrong " in line for line in shown) == wrong


def test_no_path_of_the_machine_is_told(tmp_path):
    text = f"File {tmp_path}/a.log and /opt/some/where/lib/torch/nn.py, 3/4, a/b, https://x.y/z/q/r"
    assert str(tmp_path) not in _without(text, tmp_path)
    assert "/opt/some" not in _without(text, tmp_path)
    assert "torch/nn.py, 3/4, a/b" in _without(text, tmp_path)
