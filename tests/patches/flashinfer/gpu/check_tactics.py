"""Tactic ids of the fused MoE on sm_90, natively: the kernel that an id names is the kernel that runs (F-04, F-05, F-08, F-12).

    PYTHONPATH=<patched package> python check_tactics.py --module <folder of moe_sm90.py> \\
        [--pin <pin's package> --pin-module <folder>] [--json result.json]

The tuner measures a tactic by its id with the binding's `run_gemm_profile`; the op then runs with the ids that the
tuner chose. For every id of both GEMMs this compares the kernel that the profiler's run started with the one that the
op started (names as CUPTI gives them, from torch.profiler), checks that different ids of GEMM2's TMA kernels are
different kernels, that the binding's own name of the tactic (patched only) agrees with the kernel's tile and epilogue,
and holds the output against float32. The pin runs the same beside it: it must be seen to run other kernels than were
asked for. The patched tree also shows the choice of a tile (FLASHINFER_MOE_TILE, the default by rows over the real
list, a tuned tactic, an unknown tile) and that runners are made once. Exit status 1 if any of that is not so.
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

sys.path.insert(0, str(Path(__file__).parent))

import moe_sm90

BF16 = torch.bfloat16
EXPERTS, TOP_K, HIDDEN, INTER = 32, 4, 512, 384
ALPHA, BETA, LIMIT = 1.702, 1.0, 7.0  # gpt-oss
SWIGLU, SWIGLU_BIAS = 3, 5  # the op turns the first into the second where it gets alpha, beta and a limit
NAMES = os.environ.get("KERNEL_NAMES", "")
RMS = 1.0e-2  # BF16 rounding of the activation between the GEMMs, and of the output
GEMM = re.compile(r"MainloopSm90ArrayTma|MoeFCGemm|fused_moe::")
# The profiler leaves names of this length mangled, and c++filt does not take them. In the text behind the name of the main
# loop stand two tuples of three numbers, cluster and tile; a number that was there before may be a reference to it.
_NUMBER = r"(?:N\w*?(?:1C|S[0-9A-Z]*_)ILi(\d+)EEE|S[0-9A-Z]*_)"
TUPLE = re.compile(f"IJ{_NUMBER}{_NUMBER}{_NUMBER}E")


class Problem:
    """Weights and tokens of an MoE layer as gpt-oss has it, with experts that get nothing, and its output in float32."""

    def __init__(self, tokens: int, seed: int = 0) -> None:
        random = torch.Generator(device="cuda").manual_seed(1000 * seed + tokens)

        def normal(*shape: int, scale: float) -> torch.Tensor:
            return (torch.randn(*shape, generator=random, device="cuda") * scale).to(BF16)

        self.x = normal(tokens, HIDDEN, scale=1.0)
        self.fc1 = normal(EXPERTS, 2 * INTER, HIDDEN, scale=HIDDEN**-0.5)  # rows: up, then gate
        self.fc2 = normal(EXPERTS, HIDDEN, INTER, scale=INTER**-0.5)
        self.bias1 = normal(EXPERTS, 2 * INTER, scale=0.5)
        self.bias2 = normal(EXPERTS, HIDDEN, scale=0.5)
        # A quarter of the experts gets half of the tokens, another quarter none.
        weights = torch.ones(EXPERTS, device="cuda")
        weights[: EXPERTS // 4], weights[-EXPERTS // 4 :] = 4.0, 0.0
        self.experts = torch.multinomial(weights.expand(tokens, -1), TOP_K, generator=random).int()
        self.scales = torch.rand(tokens, TOP_K, generator=random, device="cuda") + 0.1
        self.alpha, self.beta, self.limit = (torch.full((EXPERTS,), v, device="cuda") for v in (ALPHA, BETA, LIMIT))
        self.want = self.reference()

    def reference(self) -> torch.Tensor:
        out = torch.zeros(self.x.shape, device="cuda")
        for expert in range(EXPERTS):
            token, slot = (self.experts == expert).nonzero(as_tuple=True)
            hidden = self.x[token].float() @ self.fc1[expert].float().T + self.bias1[expert].float()
            up, gate = hidden.chunk(2, dim=-1)
            gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
            act = (gate * torch.sigmoid(ALPHA * gate) * (up + BETA)).to(BF16).float()
            row = act @ self.fc2[expert].float().T + self.bias2[expert].float()
            out.index_add_(0, token, row * self.scales[token, slot, None])
        return out

    def error(self, got: torch.Tensor) -> float:
        off = got.float() - self.want
        return float(off.square().mean().sqrt() / self.want.square().mean().sqrt())


class Runner:
    """The compiled runner, called as core.py calls it."""

    def __init__(self, library: Path) -> None:
        import tvm_ffi

        self.runner = tvm_ffi.load_module(str(library)).init(BF16, BF16, BF16, False, False, False, False)
        self.gemm1, self.gemm2 = self.runner.get_gemm1_tactic_count(), self.runner.get_gemm2_tactic_count()

    def op(self, p: Problem, id1: int, id2: int) -> torch.Tensor:
        out = torch.full_like(p.x, float("nan"))
        self.runner.run_moe(
            out, p.x, p.experts, p.scales, p.fc1, p.bias1, p.fc2, p.bias2, [], None, p.alpha, p.beta, p.limit, True,
            1, 0, 1, 0, 1, 0, False, False, [id1, id2], False, SWIGLU,
        )  # fmt: skip
        return out

    def profiled(self, p: Problem, gemm: int, tactic: int, *, prepare: bool) -> None:
        self.runner.run_gemm_profile(
            p.x, p.fc1, p.bias1, p.fc2, p.bias2, TOP_K, 1, 0, 1, 0, 1, 0, False, False, gemm, tactic, prepare, False, SWIGLU_BIAS,
        )  # fmt: skip


class Recorder:
    """Names of the kernels between marks, from one session of the profiler."""

    def __init__(self) -> None:
        self.mark = torch.zeros(7, dtype=torch.int16, device="cuda")
        self.labels: list[tuple] = []
        self.outputs: dict[tuple, object] = {}

    def __enter__(self) -> Recorder:
        from torch.profiler import ProfilerActivity, profile

        self.session = profile(activities=[ProfilerActivity.CUDA])
        self.session.__enter__()
        return self

    def step(self, label: tuple, call) -> None:
        torch.cuda.synchronize()
        self.mark.fill_(len(self.labels) % 100)  # FillFunctor<short>: nothing else here fills int16
        torch.cuda.synchronize()
        self.labels.append(label)
        self.outputs[label] = call()
        torch.cuda.synchronize()

    def __exit__(self, *problem: object) -> None:
        torch.cuda.synchronize()
        self.session.__exit__(None, None, None)
        if problem[0] is not None:
            return
        events = [e for e in self.session.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        events.sort(key=lambda e: e.time_range.start)
        groups: list[list[str]] = []
        for event in events:
            name = event.name
            if "FillFunctor<short>" in name:
                groups.append([])
            elif groups:
                groups[-1].append(name)
        assert len(groups) == len(self.labels), f"{len(groups)} marks seen, {len(self.labels)} set"
        self.kernels = dict(zip(self.labels, groups, strict=True))

    def gemms(self, label: tuple) -> list[str]:
        return [name for name in self.kernels[label] if GEMM.search(name)]


def shape(kernel: str) -> dict:
    """What a kernel's mangled name says of it."""
    at = kernel.find("MainloopSm90")
    tuples = TUPLE.findall(kernel, at)[:2] if at >= 0 else []
    if len(tuples) < 2:
        return {"tile": "", "cluster": "", "finalize": "Scatter" in kernel}
    # M is 128 or 256; a reference for N can only be to M, and one for K (64) only to N. The same in the cluster of 1 and 2.
    (cm, cn, _), (m, n, k) = tuples
    n = n or m
    return {"tile": f"{m}x{n}x{2 * int(k or n)}", "cluster": f"{cm}x{cn or cm}", "finalize": "Scatter" in kernel}


def name_of(runner: Runner, tactic: int) -> str:
    try:
        return str(runner.runner.get_tactic_name(tactic))
    except AttributeError:
        return ""  # the pin names none


def ids(library: Path, failures: list[str], *, patched: bool) -> dict:
    """Every id of both GEMMs: measured as, run as, named, and its output."""
    runner = Runner(library)
    problems = [Problem(3), Problem(150)]
    first = runner.gemm1  # of GEMM2's ids
    with Recorder() as recorder:
        for gemm, tactics in ((1, range(first)), (2, range(first, first + runner.gemm2))):
            recorder.step(("prepared", gemm), lambda g=gemm, t=tactics[0]: runner.profiled(problems[1], g, t, prepare=True))
            for tactic in tactics:
                recorder.step(("measured", gemm, tactic), lambda g=gemm, t=tactic: runner.profiled(problems[1], g, t, prepare=False))
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
            if patched and said["tile"] and not name.startswith(said["tile"] + " "):
                failures.append(f"{what} is called {name!r} and is {said}")
            if patched and said["tile"] and ("finalize=1" in name) != said["finalize"]:
                failures.append(f"{what} is called {name!r} and is {said}")
            finalizes = any("finalizeMoeRouting" in kernel for kernel in recorder.kernels["run", gemm, tactic, 1])
            if patched and gemm == 2 and said["tile"] and finalizes == said["finalize"]:
                failures.append(f"{what}: finalize epilogue {said['finalize']}, a kernel that finalizes {finalizes}")
    if NAMES:  # to look at what a name of a kernel is made of
        Path(NAMES).write_text(json.dumps(sorted(kernels)))
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
        measured = {key[0][-1]: value[1] for key, value in tuner.profiling_cache.items() if tuple(key[3][0]) == (32, HIDDEN)}
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
            failures.append(f"tuned with tile {tile}: measured {[shape(k) for k in want]}, ran {[shape(k) for k in ran]}")
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
    tuner.choose_one = lambda name, given, *args, **kwargs: (seen.append(given[0]), choose(name, given, *args, **kwargs))[1]
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
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


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
        return 0
    found = {"patched": child(options.module.resolve(), None)}
    if options.pin:
        found["pin"] = child(options.pin_module.resolve(), options.pin.resolve())
    for of in found.values():
        of["runners"] = []
    for _ in range(3):  # one after the other, so that neither has the quieter machine
        found["patched"]["runners"].append(child(options.module.resolve(), None, "runners"))
        if options.pin:
            found["pin"]["runners"].append(child(options.pin_module.resolve(), options.pin.resolve(), "runners"))
    failures = list(found["patched"]["failures"])
    for name, of in found.items():
        table = of["ids"]
        print(
            f"{name}: GEMM1 {table['gemm1_tactics']} tactics, GEMM2 {table['gemm2_tactics']} ({table['tma_of_gemm2']} TMA, "
            f"{table['kernels_of_them']} kernels of them), {table['ids_that_ran_another_kernel']} ids ran another kernel, "
            f"worst rms {max((max(row['rms']) for row in table['rows']), default=float('nan')):.2e}; "
            f"{[one['python_runners'] for one in of['runners']]} runners in {of['runners'][0]['calls']} calls, "
            f"{[round(one['host_us_median']) for one in of['runners']]} us of the host for a call"
        )
    made = found["patched"]["runners"][0]
    if made["python_runners"] != 2 or made["compiled_runners"] != 1:
        failures.append(f"{made['python_runners']} runners were made, {made['compiled_runners']} compiled ones")
    if "pin" in found:
        wrong = [row["id"] for row in found["pin"]["ids"]["rows"] if not row["same_kernel"]]
        print(f"pin: GEMM2 ids that run another kernel than was measured: {wrong}")
        failures += [f"pin: {failure}" for failure in found["pin"]["failures"]]
        if not wrong:
            failures.append("pin: the defect of F-04 was not seen")
    for row in found["patched"]["choice"]["untuned"]:
        print(f"asked {row['asked']}: ran {[r['tile'] for r in row['ran']]}, rms {row['rms']:.2e}")
    for failure in failures:
        print(f"FAILED {failure}")
    if options.json:
        import flashinfer

        options.json.write_text(
            json.dumps(
                {
                    "check": "tactics", "ok": not failures, "device": torch.cuda.get_device_name(),
                    "capability": list(torch.cuda.get_device_capability()), "torch": torch.__version__,
                    "cuda": torch.version.cuda, "flashinfer": flashinfer.__version__, "tree": found["patched"]["tree"],
                    "layer": {"experts": EXPERTS, "top_k": TOP_K, "hidden": HIDDEN, "inter": INTER}, "rms_limit": RMS,
                    "failures": failures, "runs": found,
                }
            )
            + "\n"
        )  # fmt: skip
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
