import json
import math

import pytest

from sparkforge.smoke.checks import CheckVerdict
from sparkforge.smoke.regret import Limits, regret

LIMITS = Limits(tokens=8)


def scores(value, **others):
    """A reference that gives every token the same score, but for what is named."""

    def ask(request):
        asked = json.loads(request)["sequences"]
        found = [dict.fromkeys(("regret", "floor", "spread"), [value] * len(one["generated"])) for one in asked]
        for place, other in others.get("at", {}).items():
            found[0]["regret"] = list(found[0]["regret"])
            found[0]["regret"][place] = other
        return b"a warning\n" + json.dumps({"sequences": found, "versions": {"torch": "2"}}).encode() + b"\n"

    return ask


def test_tokens_that_lose_little_pass(client):
    found = regret(client(), scores(0.01), model="m", limits=LIMITS)
    assert found.verdict is CheckVerdict.PASSED, found.said
    assert found.numbers["tokens"] == 16
    assert found.numbers["mean_logits"] == pytest.approx(0.01)


@pytest.mark.parametrize(
    "ask",
    [
        scores(0.035),
        scores(math.nan),
        scores(0.0, at={0: math.nan}),
        lambda request: b"Killed\n",
        lambda request: b"",
        lambda request: b'{"sequences": [], "versions": {}}',
    ],
    ids=["mean", "all NaN", "one NaN", "no answer", "nothing", "of nothing"],
)
def test_all_else_fails(client, ask):
    assert regret(client(), ask, model="m", limits=LIMITS).verdict is CheckVerdict.FAILED


def test_one_token_that_loses_too_much_fails(client):
    lax = Limits(mean=1.0, tokens=8)
    assert regret(client(), scores(0.0, at={3: 3.9}), model="m", limits=lax).verdict is CheckVerdict.PASSED
    assert regret(client(), scores(0.0, at={3: 4.1}), model="m", limits=lax).verdict is CheckVerdict.FAILED


def test_a_server_without_token_ids_fails(client):
    assert regret(client("no ids"), scores(0.0), model="m", limits=LIMITS).verdict is CheckVerdict.FAILED
