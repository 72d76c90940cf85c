"""Whether what the twin printed proves what it should: each kernel on each case, and each planted defect found.

Works on the driver's lines alone, so that it can be tested without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

TILES = ("128x32x128", "128x64x128", "128x128x128")
KERNELS = tuple((tile, swap, fusion) for tile in TILES for swap in (True, False) for fusion in ("NONE", "FINALIZE"))
CASES = (
    "every", "edges", "full-first", "one-token", "one-token-garbage", "gate-up", "one-expert", "plain-store",
)  # fmt: skip
INPUT_DEFECTS = ("rows", "expert", "output")
KERNEL_DEFECTS = 6  # compiling.DEFECTS
TOKENS = (1, 5, 96)
OP_DEFECTS = ("scales1", "halves", "expert2", "bias2")
# Of the op's output, relative to the whole: BF16 alone gives 0.002 to 0.004.
LARGEST_ERROR = 0.01

Line = Mapping[str, Any]


def outputs(line: Line) -> int:
    """Number of outputs that a line must have compared."""
    rows, n, top_k = int(line["rows"]), int(line["n"]), int(line["top_k"])
    return rows * n if line["fusion"] == "NONE" else rows // top_k * int(line["hidden"])


def wrong(line: Line) -> list[str]:
    """What is wrong with one comparison; empty if every output is right."""
    name = f"{line['case']} {line['tile']} swap_ab={line['swap_ab']} {line['fusion']}"
    found = []
    if line["compared"] != outputs(line) or not line["compared"]:
        found.append(f"{name}: {line['compared']} outputs compared, not {outputs(line)}")
    if line["wrong"]:
        found.append(
            f"{name}: {line['wrong']} of {line['compared']} differ from the model, the first is {line['first']}"
        )
    if line["beyond"]:
        found.append(f"{name}: {line['beyond']} of {line['compared']} are beyond the bound")
    if not line["guarded"]:
        found.append(f"{name}: something was written outside of the output")
    # A comparison with nothing to round has compared zeros.
    if line["inexact"] * 2 < line["compared"]:
        found.append(f"{name}: only {line['inexact']} of {line['compared']} outputs needed rounding: no real data")
    return found


def judge(lines: Iterable[Line]) -> list[str]:
    """Failures of the kernels as they are: each of `KERNELS` once on each of `CASES`, and every output right."""
    lines = list(lines)
    seen = [(line["case"], line["tile"], line["swap_ab"], line["fusion"]) for line in lines]
    wanted = [(case, *kernel) for case in CASES for kernel in KERNELS]
    failures = [f"{' '.join(map(str, each))}: run {seen.count(each)} times" for each in wanted if seen.count(each) != 1]
    failures += [f"{' '.join(map(str, each))}: not asked for" for each in seen if each not in wanted]
    for line in lines:
        failures += wrong(line)
    return failures


def unseen(name: str, lines: Iterable[Line], kernels: int, least: int = 100) -> list[str]:
    """Failures to see a defect: each of `kernels` comparisons must have found at least `least` wrong outputs."""
    lines = list(lines)
    failures = [] if len(lines) == kernels else [f"{name}: {len(lines)} comparisons, not {kernels}"]
    for line in lines:
        if line["wrong"] < least or (least > 1 and line["beyond"] < least):
            kernel = f"{line['tile']} swap_ab={line['swap_ab']} {line['fusion']}"
            failures.append(f"{name}: {kernel} passed with {line['wrong']} wrong, {line['beyond']} beyond the bound")
    return failures


def starts(lines: Iterable[Line]) -> list[str]:
    """Failures of the copies by TMA: each start was tried, and those at a multiple of 16 bytes are right."""
    lines = list(lines)
    failures = [] if len(lines) >= 8 else [f"{len(lines)} starts of a copy were tried"]
    for line in lines:
        if line["copy"] == "not tried" or (line["start_bytes"] % 16 == 0 and line["copy"] != "right"):
            failures.append(f"a copy that starts at byte {line['start_bytes']} was {line['copy']}")
    return failures


def pairs(lines: Iterable[Line]) -> list[str]:
    """Failures of the whole op: each tactic of GEMM1 with each of GEMM2, for each number of tokens, and the values."""
    lines = list(lines)
    first = [tile + swap for tile in TILES for swap in ("", " swap_ab")]
    second = [name + final for name in first for final in ("", " finalize")]
    seen = [(line["tokens"], line["gemm1"], line["gemm2"]) for line in lines]
    wanted = [(tokens, one, two) for tokens in TOKENS for one in first for two in second]
    failures = [
        f"op {' '.join(map(str, each))}: run {seen.count(each)} times" for each in wanted if seen.count(each) != 1
    ]
    failures += [f"op {' '.join(map(str, each))}: not asked for" for each in seen if each not in wanted]
    for line in lines:
        if line["beyond"] or not 0 < line["error"] <= LARGEST_ERROR or not line["compared"]:
            name = f"op {line['tokens']} {line['gemm1']} {line['gemm2']}"
            failures.append(f"{name}: error {line['error']}, {line['beyond']} of {line['compared']} beyond the bound")
    return failures


def unseen_by_op(name: str, lines: Iterable[Line]) -> list[str]:
    """Failures to see a defect of the op's inputs."""
    lines = list(lines)
    failures = [] if lines else [f"op {name}: nothing was compared"]
    for line in lines:
        if line["beyond"] < 100:
            failures.append(f"op {name}: {line['gemm1']} {line['gemm2']} passed with {line['beyond']} beyond the bound")
    return failures


def failures(result: Mapping[str, Any]) -> list[str]:
    """What is wrong with a whole run's lines; used by the program that ran, and again wherever its result is read."""
    found = [*result["problems"], *judge(result["comparisons"]), *starts(result["tma_starts"])]
    if result["gemm_only"]:
        found.append("the whole op was left out")
    else:
        found += pairs(result["op"])
    planted = result["planted"]
    for name in INPUT_DEFECTS:
        found += unseen(name, planted.get(name, ()), len(KERNELS), least=1 if name == "output" else 100)
    for number in range(1, KERNEL_DEFECTS + 1):
        found += unseen(f"kernel {number}", planted.get(f"kernel {number}", ()), 1)
    for name in () if result["gemm_only"] else OP_DEFECTS:
        found += unseen_by_op(name, planted.get(f"op {name}", ()))
    return found
