import json
from pathlib import Path

import pytest

from sparkforge.errors import CheckFailed
from sparkforge.proc import run
from sparkforge.smoke.regret import PROMPTS, REFERENCE, Limits, answer, judged
from sparkforge.store import Store
from sparkforge.tiny.make import make

pytestmark = pytest.mark.slow

GREEDY = Path(__file__).with_name("greedy.py")
LIMITS = Limits()


def judge(venv, folder, served, true):
    python = venv / "bin" / "python"
    made = json.loads(run([python, GREEDY, served, str(LIMITS.tokens), *PROMPTS]).text.splitlines()[-1])
    assert [len(one["generated"]) for one in made] == [LIMITS.tokens] * len(PROMPTS)
    request = folder / "request.json"
    request.write_text(json.dumps({"model": str(true), "sequences": made}))
    return judged(answer(run([python, REFERENCE, request]).out, made), LIMITS)


def test_bf16_arithmetic_stays_within_the_limits(cpu_venv, tmp_path):
    model = make(Store.open(tmp_path))
    _, numbers = judge(cpu_venv, tmp_path, model, model)
    assert numbers["mean_logits"] <= LIMITS.mean / 2


def test_a_planted_fault_exceeds_them(cpu_venv, tmp_path, planted, fault):
    model = make(Store.open(tmp_path / "store"))
    with pytest.raises(CheckFailed) as failed:
        judge(cpu_venv, tmp_path, planted(model, fault), model)
    print(failed.value.why)
