"""Tactic ids of the fused MoE on sm_90, natively: the kernel that an id names is the kernel that runs (F-04, F-05, F-08, F-12).

    PYTHONPATH=<patched package> python check_tactics.py --module <folder of moe_sm90.py> \\
        [--pin <pin's package> --pin-module <folder>] [--json result.json]

The tuner measures a tactic by its id with the binding's `run_gemm_profile`; the op then runs with the ids that the
tuner chose. For every id of both GEMMs this compares the kernel that the profiler's run started with the one that the
op started (names as CUPTI gives them, from torch.profiler), checks that different ids of GEMM2's TMA kernels are
different kernels, that the binding's own name of the tactic (patched only) agrees with the kernel's tile and epilogue,
and holds the output against float32. The pin runs the same beside it (over the patched tree's GEMM kernels where
moe_sm90.py linked them to it): it must be seen to run other kernels than were asked for. The patched tree also shows
the choice of a tile (FLASHINFER_MOE_TILE, the default by rows over the real list, a tuned tactic, an unknown tile) and
that runners are made once. Exit status 1 if any of that is not so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).parent))

import moe_sm90
from moe_case import (
    BF16,
    EXPERTS,
    HIDDEN,
    INTER,
    RMS,
    TOP_K,
    Problem,
    Recorder,
    Runner,
    name_of,
    shape,
)  # fmt: skip
from verdicts import tactics

from sparkforge.results.provenance import Run, tell

NAMES = os.environ.get("KERNEL_NAMES", "")
TILE = re.compile(r"\d+x\d+x\d+ ")


def ids(library: Path, failures: list[str], *, patched: bool) -> dict:
    """Every id of both GEMMs: measured as, run as, named, and its output."""
    runner = Runner(library)
    problems = [Problem(3), Problem(150)]
    first = runner.gemm1  # of GEMM2's ids
    with Recorder() as recorder:
        for gemm, tactics in ((1, range(first)), (2, range(first, first + runner.gemm2))):
            recorder.step(
                ("prepared", gemm), lambda g=gemm, t=tactics[0]: runner.profiled(problems[1], g, t, prepare=True)
            )
            for tactic in tactics:
                recorder.step(
                    ("measured", gemm, tactic),
                    lambda g=gemm, t=tactic: runner.profiled(problems[1], g, t, prepare=False),
                )
        for at, p in enumerate(problems):
            for tactic in range(first):
                recorder.step(("run", 1, tactic, at), lambda t=tactic, p=p: runner.op(p, t, first))
            for tactic in range(first, first + runner.gemm2):
                recorder.step(("run", 2, tactic, at), lambda t=tactic, p=p: runner.op(p, 0, t))
    rows, other, kernels = [], 0, {}
    for gemm, tactics in ((1, range(first)), (2, range(first, first + runner.gemm2))):
        for tactic in tactics:
            measured = recorder.gemms(("measured", gemm, tactic))
            ran = [recorder.gemms(("run", gemm, tactic, at)) for at in (0, 1)]
            errors = [p.error(recorder.outputs["run", gemm, tactic, at]) for at, p in enumerate(problems)]
            what = f"GEMM{gemm} id {tactic}"
            if len(measured) != 1 or any(len(names) != 2 for names in ran):
                failures.append(f"{what}: {len(measured)} GEMMs measured, {[len(names) for names in ran]} run")
                continue
            same = all(names[gemm - 1] == measured[0] for names in ran)
            other += not same
            said, name = shape(ran[1][gemm - 1]), name_of(runner, tactic)
            rows.append({
                "gemm": gemm, "id": tactic, "name": name, "measured": shape(measured[0]), "run": said,
                "same_kernel": same, "rms": errors,
            })  # fmt: skip
            kernels.setdefault(measured[0], []).append((gemm, tactic))
            if not all(error <= RMS for error in errors):
                failures.append(f"{what}: rms {errors}")
            if patched and not same:
                failures.append(f"{what}: measured {shape(measured[0])}, ran {said}")
            # Named by its tile if, and only if, a tile is read from its kernel's name: without that nothing is compared.
            if patched and (f"{said['tile']} " if said["tile"] else "") != (TILE.match(name) or [""])[0]:
                failures.append(f"{what} is called {name!r} and is {said}")
            if patched and said["tile"] and ("finalize=1" in name) != said["finalize"]:
                failures.append(f"{what} is called {name!r} and is {said}")
            finalizes = any("finalizeMoeRouting" in kernel for kernel in recorder.kernels["run", gemm, tactic, 1])
            if patched and gemm == 2 and said["tile"] and finalizes == said["finalize"]:
                failures.append(f"{what}: finalize epilogue {said['finalize']}, a kernel that finalizes {finalizes}")
    if NAMES:  # to look at what a name of a kernel is made of
        Path(NAMES).write_text(json.dumps(sorted(kernels)))
    if not all(bool(shape(name)["tile"]) == ("MainloopSm90" in name) for name in kernels):
        failures.append("the tile of some TMA kernel was not read from its name")
    tma = {name for name, users in kernels.items() if "MainloopSm90" in name and users[-1][0] == 2}
    offered = sum(row["gemm"] == 2 and bool(row["measured"]["tile"]) for row in rows)
    if len(tma) != offered:
        failures.append(f"GEMM2 offers {offered} TMA tactics over {len(tma)} kernels")
    return {
        "gemm1_tactics": runner.gemm1, "gemm2_tactics": runner.gemm2, "tma_of_gemm2": offered, "kernels_of_them": len(tma),
        "ids_that_ran_another_kernel": other, "tokens": [3, 150], "rows": rows,
    }  # fmt: skip


def call(p: Problem, **kwargs) -> torch.Tensor:
    from flashinfer.fused_moe import cutlass_fused_moe

    out = torch.full_like(p.x, float("nan"))
    return cutlass_fused_moe(
        p.x, p.experts, p.scales, p.fc1, p.fc2, BF16, quant_scales=[], fc1_expert_biases=p.bias1, fc2_expert_biases=p.bias2,
        swiglu_alpha=p.alpha, swiglu_beta=p.beta, swiglu_limit=p.limit, output=out, tune_max_num_tokens=64,
        enable_pdl=False, **kwargs,
    )[0]  # fmt: skip


def choice(library: Path, failures: list[str]) -> dict:
    """The public op: which tile it runs with, untuned, named by the user, and tuned."""
    from flashinfer.autotuner import AutoTuner, autotune
    from flashinfer.fused_moe import tile_choice

    moe_sm90.use(library)
    runner, p, rows = Runner(library), Problem(40), []
    tactics = {gemm: tile_choice.tactics_of(runner.runner, gemm, tile_choice.AUTO) for gemm in (1, 2)}
    tiles = sorted({t.tiles[1] for t in tactics[2] if t.m})
    with Recorder() as recorder:
        recorder.step(("auto",), lambda: call(p))
        for tile in tiles:
            os.environ[tile_choice.ENV_NAME] = tile
            recorder.step(("named", tile), lambda: call(p))
        os.environ.pop(tile_choice.ENV_NAME)
        chosen = {}
        for count in (1, 16, 17, 32, 33, 64, 65, 128):
            pair = tuple(tile_choice.default_tactic(tactics[gemm], count, tile_choice.AUTO) for gemm in (1, 2))
            chosen[count] = pair
            recorder.step(("rows", count), lambda pair=pair: runner.op(p, *pair))
    default = [shape(kernel) for kernel in recorder.gemms(("auto",))]
    for label in recorder.labels:
        got = [shape(kernel) for kernel in recorder.gemms(label)]
        error = p.error(recorder.outputs[label])
        if label[0] == "rows":
            fits = [t for t in tactics[2] if t.m and t.swap_ab and not t.finalize and label[1] <= t.n < t.m]
            want = min(fits, key=lambda t: (t.n, t.id)).tiles[1] if fits else None
        else:
            want = label[1] if label[0] == "named" else None
        rows.append({"asked": list(label), "ran": got, "rms": error})
        if len(got) != 2 or not error <= RMS:
            failures.append(f"choice {label}: {got}, rms {error:.2e}")
        elif want is None and got != default:
            failures.append(f"choice {label}: {got} in place of the default {default}")
        elif want is not None and [g["tile"] for g in got] != [want, want]:
            failures.append(f"choice {label}: ran {[g['tile'] for g in got]}, not {want}")
    os.environ[tile_choice.ENV_NAME] = "64x8"
    try:
        call(p)
        failures.append("an unknown tile was accepted")
        refusal = ""
    except ValueError as problem:
        refusal = str(problem)
        if not all(tile in refusal for tile in tiles):
            failures.append(f"the refusal does not list the tiles: {refusal}")
    os.environ.pop(tile_choice.ENV_NAME)

    tuned, tuner = [], AutoTuner.get()
    for tile in ("auto", "128x64x128"):
        tuner.clear_cache()
        os.environ[tile_choice.ENV_NAME] = tile
        with autotune(True):
            call(p)
        measured = {
            key[0][-1]: value[1] for key, value in tuner.profiling_cache.items() if tuple(key[3][0]) == (32, HIDDEN)
        }
        with Recorder() as recorder:
            recorder.step((tile,), lambda: call(p))
            for gemm in (1, 2):
                recorder.step(("prepared", gemm), lambda g=gemm: runner.profiled(p, g, measured[str(g)], prepare=True))
                recorder.step((tile, gemm), lambda g=gemm: runner.profiled(p, g, measured[str(g)], prepare=False))
        ran = recorder.gemms((tile,))
        want = [recorder.gemms((tile, gemm))[0] for gemm in (1, 2)]
        tuned.append({"tile": tile, "ids": measured, "names": {g: name_of(runner, t) for g, t in measured.items()},
                      "ran": [shape(k) for k in ran], "rms": p.error(recorder.outputs[(tile,)])})  # fmt: skip
        if ran != want:
            failures.append(
                f"tuned with tile {tile}: measured {[shape(k) for k in want]}, ran {[shape(k) for k in ran]}"
            )
        if tile != "auto" and any(shape(kernel)["tile"] != tile for kernel in ran):
            failures.append(f"tuned with tile {tile}: ran {[shape(k) for k in ran]}")
        if not tuned[-1]["rms"] <= RMS:
            failures.append(f"tuned with tile {tile}: rms {tuned[-1]['rms']:.2e}")
    os.environ.pop(tile_choice.ENV_NAME)
    tuner.clear_cache()
    return {"tiles": tiles, "untuned": rows, "refusal": refusal, "tuned": tuned}


def runners(library: Path) -> dict:
    """How many runners some calls make, and the host's time of a call."""
    from flashinfer.autotuner import AutoTuner

    counts, p, tuner, seen = moe_sm90.use(library), Problem(4), AutoTuner.get(), []
    choose = tuner.choose_one
    tuner.choose_one = lambda name, given, *args, **kwargs: (
        seen.append(given[0]),
        choose(name, given, *args, **kwargs),
    )[1]
    for _ in range(10):
        call(p)
    distinct = len({id(runner) for runner in seen})
    del tuner.choose_one
    samples = []
    for _ in range(300):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call(p)
        samples.append((time.perf_counter() - start) * 1e6)
    return {"calls": 10, "python_runners": distinct, "compiled_runners": counts["init"],
            "host_us_median": statistics.median(samples), "host_us": [round(sample, 1) for sample in samples]}  # fmt: skip


def inside(library: Path, *, patched: bool) -> dict:
    import flashinfer
    from flashinfer.jit import env as jit_env

    failures: list[str] = []
    found = {
        "flashinfer": flashinfer.__version__, "tree": getattr(jit_env, "FLASHINFER_TREE_ID", "") or "unpatched",
        "ids": ids(library, failures, patched=patched),
    }  # fmt: skip
    if patched:
        found["choice"] = choice(library, failures)
    return found | {"failures": failures}


def child(module: Path, package: Path | None, what: str = "") -> dict:
    environment = dict(os.environ)
    if package:
        environment["PYTHONPATH"] = os.pathsep.join([str(package), environment.get("PYTHONPATH", "")])
    words = [sys.executable, __file__, "--module", str(module), "--inside", what or ("pin" if package else "patched")]
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        message = f"{' '.join(words[2:])}: status {done.returncode}"
        raise RuntimeError(message)
    return json.loads(done.stdout.splitlines()[-1])


def others(of: dict) -> list[int]:
    return [row["id"] for row in of["ids"]["rows"] if not row["same_kernel"]]


def show(found: dict[str, dict]) -> None:
    for name, of in found.items():
        table = of["ids"]
        print(
            f"{name}: GEMM1 {table['gemm1_tactics']} tactics, GEMM2 {table['gemm2_tactics']} ({table['tma_of_gemm2']} TMA, "
            f"{table['kernels_of_them']} kernels of them), ids that ran another kernel than was measured: {others(of)}; "
            f"worst rms {max((max(row['rms']) for row in table['rows']), default=float('nan')):.2e}; "
            f"{[one['python_runners'] for one in of['runners']]} runners in 10 calls, "
            f"{[round(one['host_us_median']) for one in of['runners']]} us of the host for a call"
        )
        for row in of.get("choice", {}).get("untuned", ()):
            print(f"asked {row['asked']}: ran {[r['tile'] for r in row['ran']]}, rms {row['rms']:.2e}")
        for row in of.get("choice", {}).get("tuned", ()):
            print(f"tuned, {row['tile']}: {row['names']}, ran {[r['tile'] for r in row['ran']]}, rms {row['rms']:.2e}")


def result(found: dict[str, dict]) -> dict:
    patched = found.get("patched", {})
    return {
        "check": "tactics", "device": torch.cuda.get_device_name(), "capability": list(torch.cuda.get_device_capability()),
        "torch": torch.__version__, "cuda": torch.version.cuda, "flashinfer": patched.get("flashinfer"),
        "tree": patched.get("tree", ""), "layer": {"experts": EXPERTS, "top_k": TOP_K, "hidden": HIDDEN, "inter": INTER},
        "runs": found,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", type=Path, required=True, help="folder that moe_sm90.py wrote")
    parser.add_argument("--pin", type=Path, help="folder with the unpatched `flashinfer` package")
    parser.add_argument("--pin-module", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    library = options.module.resolve() / f"{moe_sm90.NAME}.so"
    if options.inside:
        of_runners = options.inside == "runners"
        print(json.dumps(runners(library) if of_runners else inside(library, patched=options.inside == "patched")))
        tell()
        return 0
    run = Run(__file__)
    run.compiled(Path(os.environ.get("FLASHINFER_WORKSPACE_BASE", Path.home())) / ".cache/flashinfer")
    found: dict[str, dict] = {}
    trees = {"patched": (options.module.resolve(), None)}
    if options.pin:
        trees["pin"] = (options.pin_module.resolve(), options.pin.resolve())
    try:
        for name, (module, package) in trees.items():
            found[name] = child(module, package) | {"runners": []}
            found[name]["kernels"] = "its own" if (module / "kernels.txt").exists() else "the patched tree's"
        for _ in range(3):  # one after the other, so that neither has the quieter machine
            for name, (module, package) in trees.items():
                found[name]["runners"].append(child(module, package, "runners"))
        failures = tactics(result(found)) if "pin" in found else ["the pin did not run beside it (--pin)"]
    except RuntimeError as problem:
        failures = [str(problem)]
    show(found)
    for failure in failures:
        print(f"FAILED {failure}")
    if options.json:
        run.write(options.json, result(found))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
