"""When a check of a vLLM proof is right: what it demands of its numbers, and the limits; read again wherever a result is.

A check holds what was measured (`numbers`) and what is demanded of it: rows of key, comparison and limit, the limit a
number or a name in LIMITS. No verdict is stored. Standard library only.

Where the limits come from: `results/vllm/tolerances.json` (tools/measure/tolerances.py) has what rounding alone and what
each planted fault does to the tiny model, and `results/vllm/gpu-sm90.json` what rounding did on a GPU. A limit stands above
all rounding that was seen and below every fault that it must find. "Spreads" are standard deviations of a place's logits
over the vocabulary. rms: of the differences of logits. Regret: how far below the judge's best logit an engine's own choice
lies, largest and mean over all places.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

LIMITS: dict[str, float] = {
    # The tiny model. On a GPU rounding gave rms 0.038, regret 0.28, mean 0.0030; the least fault gives rms 0.074, mean 0.0078.
    "logit rms": 0.06,
    "logit rms, FP8 KV": 0.146,
    "logit rms, FP8 KV and queries": 0.175,
    "regret": 0.35,
    "mean regret": 0.005,
    # The wide model: rounding gave rms 0.051, regret 0.49, mean 0.0066 on a GPU. No fault was measured on it.
    "logit rms, wide": 0.1,
    "regret, wide": 0.75,
    "mean regret, wide": 0.015,
    "regret, FP8 KV": 0.75,
    "mean regret, FP8 KV": 0.036,
    "mean regret, FP8 KV and queries": 0.055,
    # Of the fitted model: by how much leads of the wanted tokens move, and how many times that the least lead is.
    "lead rms": 0.1,
    "lead rms, FP8 KV": 0.235,
    "least lead in lead rms": 6.0,
    # CUTLASS in BF16 against float32, relative: products of 512, twice, added up in another order.
    "CUTLASS off": 0.02,
}
# By how much rounding alone moved leads on a GPU, rms: of one graph mode against another. A fault comes on top of it.
ROUNDING = {"lead rms": 0.066, "lead rms, FP8 KV": 0.196}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "<=": operator.le, ">=": operator.ge, ">": operator.gt,
}  # fmt: skip


def unmet(check: Mapping[str, Any]) -> list[str]:
    """Demands of a check that its numbers do not meet; a number that is missing, or is none, meets nothing."""
    found = []
    for key, compare, limit in check["demands"]:
        value = check["numbers"].get(key)
        bound = LIMITS[limit] if isinstance(limit, str) and limit in LIMITS else limit
        if value is None or not _COMPARE[compare](value, bound):
            found.append(f"{key} is {value}, not {compare} {bound}")
    return found


def verdict(check: Mapping[str, Any]) -> str:
    """ "right", "wrong", "not run" (`said` has the reason), or "told" (nothing was to be judged)."""
    if check["state"] != "judged":
        return str(check["state"])
    return "right" if check["demands"] and not unmet(check) else "wrong"


def failures(result: Mapping[str, Any]) -> list[str]:
    """What is wrong with a run: checks that fail or did not run, and an end before its time."""
    found = [f"interrupted: {result['interrupted']}"] if result["interrupted"] else []
    if not any(check["state"] == "judged" for check in result["checks"]):
        found.append("nothing was judged")
    for check in result["checks"]:
        what = f"{check['section']}, {check['name']}"
        if check["state"] == "not run":
            found.append(f"{what}: not run: {check['said']}")
        elif verdict(check) == "wrong":
            found.append(f"{what}: {'; '.join(unmet(check)) or 'demands nothing'}")
    return found
