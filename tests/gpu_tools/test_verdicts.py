"""The judges of FlashInfer's, the modules' and the kernels' proofs, on recorded samples: right as they are, and each
fault that is planted in the samples is named."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from sparkforge.results.proofs import judged

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
FLASHINFER = "tools/gpu/flashinfer/verdicts.py"
MEASURE = "tools/measure/verdicts.py"
NAN = float("nan")


def sample(name: str) -> dict:
    """A recorded result, with what today's program writes besides."""
    found = json.loads((RESULTS / f"{name}.json").read_bytes())
    if name == "flashinfer/sinks-sm90":
        for group in found["groups"].values():
            group["not finite"] = 0
    if name == "flashinfer/xqa-sm90":
        for of in found["runs"].values():
            for row in of["rows"]:
                row["beside"] = row["runs"]
    if name == "flashinfer/tactics-expand-sm90":
        faults = ("rounded down", "neighbour's scale", "linear scales", "byte off by one", "copied row of another")
        found["planted"] = {fault: {"cases": 20, "seen": 20} for fault in faults}
    if name == "flashinfer/twin-sm90":
        found["problems"] = []
    if name == "flashinfer/module-facts-arm64":
        found["objects read"] = 100
    return found


def first(rows, **what):
    return next(row for row in rows if all(row[key] == value for key, value in what.items()))


SINKS = ("flashinfer/sinks-sm90", f"{FLASHINFER}:sinks")
XQA = ("flashinfer/xqa-sm90", f"{FLASHINFER}:xqa")
SF = ("flashinfer/sf-tma-sm90", f"{FLASHINFER}:sf_tma")
EXPAND = ("flashinfer/tactics-expand-sm90", f"{FLASHINFER}:expand")
TACTICS = ("flashinfer/tactics-sm90", f"{FLASHINFER}:tactics")
BENCH = ("flashinfer/bench-sinks-sm90", f"{FLASHINFER}:bench")
TWIN = ("flashinfer/twin-sm90", "tools/gpu/flashinfer/twin/judge.py:failures")
KERNEL = ("kernels/dense-check-sm90", "kernels/bench/verdict.py:failures")
TIMED = ("kernels/dense-sm90", "kernels/bench/verdict.py:timing")
KILL = ("build/kill", f"{MEASURE}:kill")
STRUCTURE = ("build/structure-serve-aarch64", f"{MEASURE}:structure")
BUILD = ("build/cpu-docker", f"{MEASURE}:build")
APPLY = ("series-apply/result", f"{MEASURE}:apply")
AOT = ("flashinfer/aot-12.1f-amd64", f"{MEASURE}:aot_build")
CHECK = ("flashinfer/aot-check-12.1f", f"{MEASURE}:aot_check")
AUDIT = ("flashinfer/aot-audit-12.1f", f"{MEASURE}:aot_audit")
FACTS = ("flashinfer/module-facts-arm64", f"{MEASURE}:module_facts")

GROUP = "decode, fp8 kv, window 127"


def delayed(runs, name):
    return first(runs[name]["rows"], delayed=True, shared=True)


# What is judged, what is planted in its samples, what is said.
FAULTS = [
    (SINKS, lambda said: said["groups"][GROUP].update(rms=0.02), "rms 2.00e-02"),
    (SINKS, lambda said: said["groups"][GROUP].update(lse=NAN), "lse nan"),
    (SINKS, lambda said: said["groups"][GROUP].update({"not finite": 1}), "not finite"),
    (SINKS, lambda said: said["groups"][GROUP].update(blind=0.02), "not seen"),
    (SINKS, lambda said: said["groups"].pop(GROUP), f"{GROUP}: no case ran"),
    (SINKS, lambda said: said["failures"].append("the plans did not split"), "the plans did not split"),
    (XQA, lambda said: said["runs"]["patched"]["rows"][3].update(differ=1), "1 of 1000 runs differ"),
    (XQA, lambda said: said["runs"]["patched"]["rows"][3].update(worst=NAN), "runs differ"),
    (XQA, lambda said: said["runs"]["patched"]["rows"][3].update(beside=20), "beside traffic"),
    (XQA, lambda said: said["runs"]["patched"]["rows"].pop(), "43 of 44 cases ran"),
    (XQA, lambda said: said["runs"].pop("pin"), "pin: 0 of 44 cases ran"),
    (XQA, lambda said: delayed(said["runs"], "pin").update(differ=0, rms=0, largest=0, worst=0), "not seen"),
    (SF, lambda said: first(said["programs"]["fp4"]["rows"], fault="none").update(wrong=1), "1 of 17040 wrong"),
    (SF, lambda said: first(said["programs"]["fp8"]["rows"], fault="block").update(wrong=0), "0 of 17040 wrong"),
    (SF, lambda said: said["programs"]["fp8"].update(status=1), "status 1"),
    (SF, lambda said: said["programs"].pop("fp8"), "fp8: status not run"),
    (EXPAND, lambda said: said["counts"].update(bytes_wrong=1), "bytes_wrong: 1"),
    (EXPAND, lambda said: said["counts"].update(unwritten_behind=2), "unwritten_behind: 2"),
    (EXPAND, lambda said: said["counts"].update(copied=0), "copied: nothing"),
    (EXPAND, lambda said: said["planted"]["linear scales"].update(seen=19), "seen in 19 of 20"),
    (EXPAND, lambda said: said["planted"].pop("byte off by one"), "seen in 0 of 0"),
    (TACTICS, lambda said: said["runs"]["patched"]["ids"]["rows"][5].update(same_kernel=False), "same kernel False"),
    (TACTICS, lambda said: said["runs"]["patched"]["ids"]["rows"][5].update(rms=[0.001, 0.02]), "0.02"),
    (TACTICS, lambda said: said["runs"]["patched"]["runners"][0].update(python_runners=10), "10 runners"),
    (TACTICS, lambda said: said["runs"]["pin"]["runners"][0].update(python_runners=2), "F-12 was not seen"),
    (TACTICS, lambda said: [row.update(same_kernel=True) for row in said["runs"]["pin"]["ids"]["rows"]], "F-04"),
    (BENCH, lambda said: said["rows"][0].update(median_us=1.0), "50 samples"),
    (BENCH, lambda said: said["rows"].clear(), "nothing was timed"),
    (TWIN, lambda said: said["comparisons"][4].update(wrong=1), "1 of"),
    (TWIN, lambda said: said["comparisons"].pop(), "run 0 times"),
    (TWIN, lambda said: said["planted"]["kernel 3"][0].update(wrong=0), "kernel 3"),
    (TWIN, lambda said: said["planted"].pop("op halves"), "op halves: nothing was compared"),
    (TWIN, lambda said: said["op"][9].update(error=0.5), "error 0.5"),
    (TWIN, lambda said: said["problems"].append("twin: status 1"), "twin: status 1"),
    (TWIN, lambda said: said.update(gemm_only=True), "left out"),
    (KERNEL, lambda said: said["checks"].update(worst=1.01), "1.01 of its bound"),
    (KERNEL, lambda said: said["checks"].update(worst=NAN), "nan of its bound"),
    (KERNEL, lambda said: said["checks"].update({"CUDA graph": ["other bits"]}), "CUDA graph: ['other bits']"),
    (KERNEL, lambda said: said["checks"].update(outputs=0), "nothing was compared"),
    (KERNEL, lambda said: said["checks"].pop("racecheck"), "not looked at: racecheck"),
    (TIMED, lambda said: said["timed"][0]["microseconds"].pop(), "99 samples, wanted 100"),
    (TIMED, lambda said: said["timed"][0].update(median_us=1.0), "the median is not that of the samples"),
    (TIMED, lambda said: said["timed"][0].update(gb_per_s=4000.0), "above what reading alone gives"),
    (KILL, lambda said: said["stray"].append("files/x"), "stray"),
    (KILL, lambda said: said.update(same_manifest=False), "manifest"),
    (KILL, lambda said: said["kills"][0].update(ended=True), "had ended"),
    (STRUCTURE, lambda said: said["elf_of_other_machines"].update({"bin/x": "x86_64"}), "bin/x is of x86_64"),
    (STRUCTURE, lambda said: said["record_faults"].append("x is another file"), "x is another file"),
    (STRUCTURE, lambda said: said["elf"].clear(), "no program"),
    (BUILD, lambda said: said["edit"][0].update(layers_kept=0), "kept 0 layers"),
    (BUILD, lambda said: said["no_op"].clear(), "no sample of no_op"),
    (APPLY, lambda said: said["cases"]["vllm 0.21.0"]["samples"].pop("git am"), "['git am'] were not timed"),
    (AOT, lambda said: said["units"].clear(), "others are listed"),
    (CHECK, lambda said: said["routes"][0].update(failed="ValueError"), "ValueError"),
    (CHECK, lambda said: said.update(compiler="/usr/bin/nvcc"), "a compiler was there"),
    (CHECK, lambda said: said["modules"].clear(), "nothing was asked for"),
    (AUDIT, lambda said: said["modules"][0].update(archs=["9.0"]), "kernels for ['9.0']"),
    (AUDIT, lambda said: [one.update(pdl_waits=0) for one in said["modules"][0]["families"]], "lacks block-scaled"),
    (AUDIT, lambda said: said["modules"].pop(0), "no GEMM of FP8 and FP4"),
    (FACTS, lambda said: said["traps"]["kinds"].update({"90 instructions, 1 traps, 8 MMAs, Sm120": 1}), "Sm120"),
    (FACTS, lambda said: said.update({"objects read": 0}), "no object was read"),
]
JUDGED = list(dict.fromkeys(judge for judge, _, _ in FAULTS))


@pytest.mark.parametrize(("name", "judge"), JUDGED, ids=[name for name, _ in JUDGED])
def test_recorded_samples_are_right(name, judge):
    assert judged(ROOT, judge, sample(name)) == []


@pytest.mark.parametrize(("judge", "plant", "said"), FAULTS, ids=[said for _, _, said in FAULTS])
def test_each_fault_that_is_planted_in_the_samples_is_named(judge, plant, said):
    result = copy.deepcopy(sample(judge[0]))
    plant(result)
    found = judged(ROOT, judge[1], result)
    assert [one for one in found if said in one], found


def test_a_step_that_failed_or_was_not_taken_is_named():
    steps = [{"step": "install", "status": 0}, {"step": "patches.prove", "status": 0}]
    assert judged(ROOT, f"{MEASURE}:bare_root", {"steps": steps}) == []
    assert judged(ROOT, f"{MEASURE}:bare_root", {"steps": steps[:1]}) == [
        "the last step was 'install', not 'patches.prove'"
    ]
    steps[1]["status"] = 1
    assert judged(ROOT, f"{MEASURE}:bare_root", {"steps": steps}) == ["patches.prove: status 1"]
