"""What is wrong with the samples of a result; read where there is no GPU, so standard library only."""

from __future__ import annotations

import statistics
from typing import Any

COUNTS = ("calls", "outputs", "worst", "top-k tokens", "memcheck says", "racecheck says")
MUST = ("planted faults", "tokens beside, 100 runs", "chain with PDL", "strips", "memcheck", "racecheck")
SAMPLES = 100


def failures(result: dict[str, Any]) -> list[str]:
    """Of check_gpu.py: sentences, none where all is right."""
    checks = result["checks"]
    found = list(result["wrong"])
    found += [f"{name}: {said}" for name, said in checks.items() if name not in COUNTS and said != "right"]
    found += [f"not looked at: {name}" for name in MUST if name not in checks]
    if not checks["worst"] <= 1:
        found.append(f"worst error is {checks['worst']} of its bound")
    if not checks["outputs"] or not checks.get("top-k tokens"):
        found.append("nothing was compared")
    return found


def timing(result: dict[str, Any]) -> list[str]:
    """Of measure.py: each figure is the median of its samples, enough of them, and above no ceiling of the run."""
    found = []
    ceiling = result["ceilings"]["read 1 GiB"]
    for one in [*result["ceilings"].values(), *result["timed"]]:
        name = f"{one['name']}, {one['variant']}, M {one['m']}"
        if len(one["microseconds"]) < SAMPLES:
            found.append(f"{name}: {len(one['microseconds'])} samples, wanted {SAMPLES}")
        elif abs(statistics.median(one["microseconds"]) - one["median_us"]) > 1e-3 * one["median_us"]:
            found.append(f"{name}: the median is not that of the samples")
        # A read-only launch may beat the 1 GiB one by noise; nothing else may beat it at all.
        if one["gb_per_s"] > 1.03 * ceiling["gb_per_s"]:
            found.append(f"{name}: {one['gb_per_s']:.0f} GB/s is above what reading alone gives")
    return found or ([] if result["timed"] else ["nothing was timed"])


EXPERT_CHECKS = ("plain", "edges", "planted faults", "same bits", "router")


def expert_failures(result: dict[str, Any]) -> list[str]:
    """Of check_experts.py: sentences, none where all is right."""
    return [f"{name}: {result.get(name, 'not looked at')}" for name in EXPERT_CHECKS if result.get(name) != "right"]


def expert_timing(result: dict[str, Any]) -> list[str]:
    """Of measure_experts.py, as `timing` judges measure.py."""
    return timing(result | {"ceilings": {"read " + one["name"]: one for one in result["ceilings"]}})
