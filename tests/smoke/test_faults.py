import json
from pathlib import Path

import msgspec
import pytest

from sparkforge.core.errors import CheckFailed
from sparkforge.core.proc import run
from sparkforge.core.store import Store
from sparkforge.smoke.regret import PROMPTS, REFERENCE, Limits, answer, judged
from sparkforge.smoke.tiny.make import make

pytestmark = pytest.mark.slow

GREEDY = Path(__file__).with_name("greedy.py")
LIMITS = Limits()
NONE = "no fault"


@pytest.fixture(scope="module")
def scored(cpu_venv, faults, tmp_path_factory):
    """The reference's answer for the tokens of the true model and of one with each fault."""
    folder = tmp_path_factory.mktemp("faults")
    model = make(Store.open(folder / "store"))
    served = {NONE: model} | {name: plant(model, folder / name.replace(" ", "-")) for name, plant in faults.items()}

    def program(script, **request):
        file = folder / "request.json"
        file.write_text(json.dumps(request))
        return run([cpu_venv / "bin" / "python", script, file]).out

    models = [str(one) for one in served.values()]
    said = program(GREEDY, models=models, prompts=PROMPTS, tokens=LIMITS.tokens)
    made = json.loads(said.splitlines()[-1])
    flat = [one for each in made for one in each]
    assert [len(one["generated"]) for one in flat] == [LIMITS.tokens] * len(PROMPTS) * len(served)
    found = answer(program(REFERENCE, model=str(model), sequences=flat), flat)
    parts = {}
    for place, name in enumerate(served):
        these = slice(place * len(PROMPTS), (place + 1) * len(PROMPTS))
        parts[name] = msgspec.structs.replace(found, sequences=found.sequences[these])
    return parts


def test_bf16_arithmetic_stays_well_within_the_limits(scored):
    said, numbers = judged(scored[NONE], LIMITS)
    print(said)
    assert numbers["mean_logits"] <= LIMITS.mean / 2
    assert numbers["max_logits"] <= LIMITS.most / 2


def test_a_planted_fault_exceeds_them(scored, fault):
    with pytest.raises(CheckFailed) as failed:
        judged(scored[fault], LIMITS)
    print(failed.value.why)
