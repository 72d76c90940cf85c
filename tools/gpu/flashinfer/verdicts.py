"""What is wrong with the samples of each FlashInfer proof; run by the program that measured, and again on reading.

Each function takes a result and returns sentences, none where all is right. The limits stand here and not in a result:
a result holds what was seen. Standard library only, so that samples are judged where there is no GPU.
"""

from __future__ import annotations

import math

# Attention against float32. Rounding of P and of the output to BF16, once more for each split and for v_scale, is
# 2**-9 each at most; leaving the sinks out moves the outputs by 0.16 and more (`blind` of the groups in sinks-sm90.json).
RMS, LARGEST, LSE = 1.0e-2, 3.0e-2, 2.0e-2
SINK_GROUPS = tuple(
    f"{kind}, {kv} kv, {window}"
    for kv in ("bf16", "fp8")
    for window in ("no window", "window 127")
    for kind in ("decode", "split KV", "graph replay", "prefill")
)
# Lengths of XQA's cases: one page to 131072 tokens, alone and together.
XQA_LENGTHS = (
    [1], [129], [4097], [20000], [131072], [131071, 1], [1, 130, 4097, 8191], [65536, 257, 30000, 1],
    [1, 2048, 300, 129, 4095, 17, 8192, 640], [2048, 1] * 8, [257] * 16,
)  # fmt: skip
SF_ROWS = 4 + 5 + 5 + 3 * 4  # operand B in three tiles, operand A beside each
EXPAND_FAULTS = ("rounded down", "neighbour's scale", "linear scales", "byte off by one", "copied row of another")
MOE_RMS = 0.01


def over(value: float, limit: float) -> bool:
    """Whether a value is above its limit, or no number at all."""
    return not value <= limit


def sinks(result: dict) -> list[str]:
    """F-02, F-03: attention with sinks against float32."""
    found = list(result["failures"])
    groups = result["groups"]
    found += [f"{name}: no case ran" for name in SINK_GROUPS if not groups.get(name, {}).get("cases")]
    for name, row in groups.items():
        for key, limit in (("rms", RMS), ("largest", LARGEST), ("lse", LSE), ("not finite", 0)):
            if over(row[key], limit):
                found.append(f"{name}: {key} {row[key]:.2e}, limit {limit:.0e}")
        if not row["blind"] > 3 * RMS:
            found.append(f"{name}: leaving out the sinks moves the output by {row['blind']:.2e} only: not seen")
    return found


def xqa(result: dict) -> list[str]:
    """F-11: no bit moves in many runs; with the race provoked the pin is wrong and the series right."""
    found = []
    for name in ("patched", "pin"):
        of = result["runs"].get(name, {"rows": [], "status": "not run"})
        asked = [
            (delayed, window, lengths) for delayed in (False, True) for window in (-1, 127) for lengths in XQA_LENGTHS
        ]
        ran = [(row["delayed"], row["window"], row["lengths"]) for row in of["rows"]]
        if ran != asked or of["status"] != 0:
            found.append(f"{name}: {len(ran)} of {len(asked)} cases ran, status {of['status']}")
        for row in of["rows"]:
            what = f"{name}, {'with' if row['delayed'] else 'without'} wait, window {row['window']}, {row['lengths']}"
            right = row["differ"] == 0 and not any(over(row[key], limit) for key, limit in
                                                   (("rms", RMS), ("largest", LARGEST), ("worst", LARGEST)))  # fmt: skip
            if name == "patched" and not right:
                found.append(f"{what}: rms {row['rms']:.2e}, {row['differ']} of {row['runs']} runs differ")
            if name == "patched" and not row["delayed"] and row["beside"] < 0.9 * row["runs"]:
                found.append(f"{what}: only {row['beside']} of {row['runs']} runs began beside traffic")
            if name == "pin" and row["delayed"] and row["shared"] and right:
                found.append(f"{what}: the race was provoked and not seen")
    return found


def sf_tma(result: dict) -> list[str]:
    """F-06, F-07: scale factors copied by a real TMA unit; every planted fault must be seen."""
    found = []
    for name in ("fp4", "fp8"):
        of = result["programs"].get(name, {"status": "not run", "rows": []})
        rows = of["rows"]
        if of["status"] != 0 or len(rows) != SF_ROWS or not any(row["fault"] == "none" for row in rows):
            found.append(f"{name}: status {of['status']}, {len(rows)} of {SF_ROWS} rows")
        for row in rows:
            if not row["compared"] or (row["wrong"] == 0) != (row["fault"] == "none"):
                what = f"{name}, operand {row['operand']}, tile {row['tile']}, fault {row['fault']}"
                found.append(f"{what}: {row['wrong']} of {row['compared']} wrong")
    return found


def expand(result: dict) -> list[str]:
    """F-09: what the expand kernel wrote; each fault planted in its output must be seen by the same comparison."""
    found, counts = [], result["counts"]
    for name, number in counts.items():
        if name.endswith(("wrong", "not_zero", "behind")) and number:
            found.append(f"{name}: {number}")
    found += [f"{name}: nothing was compared" for name in ("copied", "bytes", "scale_factors") if not counts[name]]
    for name in EXPAND_FAULTS:
        one = result["planted"].get(name, {"cases": 0, "seen": 0})
        if not one["cases"] or one["seen"] != one["cases"]:
            found.append(f"fault {name}: seen in {one['seen']} of {one['cases']} cases")
    return found


def tactics(result: dict) -> list[str]:
    """F-04, F-05, F-08, F-12: each tactic id runs the kernel that was measured; the defects are seen in the pin."""
    runs = result["runs"]
    patched, pin = runs["patched"], runs["pin"]
    found = [*patched["failures"], *(f"pin: {failure}" for failure in pin["failures"])]
    for row in patched["ids"]["rows"]:
        if not row["same_kernel"] or any(over(rms, MOE_RMS) for rms in row["rms"]):
            found.append(f"GEMM{row['gemm']} id {row['id']}: same kernel {row['same_kernel']}, rms {row['rms']}")
    for row in (*patched["choice"]["untuned"], *patched["choice"]["tuned"]):
        if over(row["rms"], MOE_RMS):
            found.append(f"choice {row.get('asked', row.get('tile'))}: rms {row['rms']:.2e}")
    found += [f"{one['python_runners']} runners were made, {one['compiled_runners']} compiled ones"
              for one in patched["runners"] if (one["python_runners"], one["compiled_runners"]) != (2, 1)]  # fmt: skip
    if not patched["ids"]["rows"] or not patched["runners"] or not pin["runners"]:
        found.append("no tactic or no runner was looked at")
    if all(row["same_kernel"] for row in pin["ids"]["rows"]):
        found.append("pin: the defect of F-04 was not seen")
    if any(one["python_runners"] == 2 for one in pin["runners"]):
        found.append("pin: the defect of F-12 was not seen")
    return found


def bench(result: dict) -> list[str]:
    """F-03's times: every cell has its samples, and its median is theirs."""
    found = [] if result["rows"] else ["nothing was timed"]
    for row in result["rows"]:
        samples = sorted(row["samples_us"])
        middle = samples[len(samples) // 2] if samples else math.nan
        if len(samples) < 20 or not abs(row["median_us"] / middle - 1) < 0.02:
            found.append(
                f"{row['variant']} {row['kv']} batch {row['batch']} context {row['context']}: {len(samples)} samples"
            )
    return found
