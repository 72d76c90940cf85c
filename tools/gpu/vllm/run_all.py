"""Proofs of the vLLM series on a GPU of compute capability 9.0: run them all, or some, within so many minutes.

    python tools/gpu/vllm/run_all.py --json result.json [--only dense,graphs] [--minutes 8]

Sections:
  dense           the quantizer of V-06 against brute force, Marlin against float64, at gpt-oss's own shapes
  e2e_dense       an MXFP4 gpt-oss with --mxfp4-layers all against a BF16 twin of its dequantized weights
  attention       FlashInfer FA2 with sinks against TRITON_ATTN, KV in BF16 and FP8; the test opens the gate
  graphs          eager against full and piecewise CUDA graphs, token for token; n-gram speculation off and on
  decode_kernels  V-10 with fakes that count, and with sparkforge_kernels from the folder in $SPARKFORGE_KERNELS_SITE
  sharp           the fitted models (sharp.py): every token as fitted, in every graph mode, n-gram off and on; faults planted
  soak            requests that come and go for --soak-seconds on every captured path, on the fitted model, every token;
                  --soaks names paths, --soak-replays and --soak-compositions what each must have had when it ends
  captured        V-12: every node, address, descriptor and tactic of every graph, equal when captured again; its owners
                  alive at each replay; defects planted
  server          `vllm serve` over HTTP on the fitted model: chats, completions, streamed, many at once; with --gpus 2
                  also with each layer divided between two GPUs
  wide            the same model at full width, two layers: e2e_dense and attention, if time is left
  xqa             V-11, where it is named: decode by XQA, KV in BF16, as `sharp`; the test opens the gate

Needs the patched vllm and flashinfer (both with sparkforge_tree.txt), torch, nvcc, one GPU with 40 GB free. Exit
status 0 where nothing is wrong, 1 where a check is, 2 for wrong words.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import bound
import judge as judging
import packages
from judge import Judge
from plan import SEED, Engines, Prompts
from pool import Job, Pool
from sections import (
    BY_XQA,
    CAPTURED,
    EXTRA,
    EXTRA_SOAKS,
    FAULTS,
    KERNELS,
    KNOWN,
    SECTIONS,
    SERVERS,
    SOAKS,
    Sections,
    needs_kernels,
    table,
)  # fmt: skip
from verdicts import model_of

MODELS = {
    "tiny": "checkpoint.py: gpt-oss of 4 layers, hidden 512, 16 / 2 heads, 8 experts, vocabulary 2048, random weights; 1024 tokens",
    "sharp": "tiny with an lm_head fitted to say chosen replies (sharp.py), for BF16 KV; names with X, S, C and the server",
    "sharp8": "the same for FP8 KV: a larger margin, since FP8 rounding moves more",
    "wide": "gpt-oss of 2 layers at full width: hidden 2880, 64 / 8 heads, 128 experts, vocabulary 8192, random weights",
}
# By how many spreads the fitted token leads. The least at which no rounding changes a token: a larger one hides faults.
MARGINS = {"sharp": 0.75, "sharp8": 2.0}
# Of what an engine says of itself, what the result keeps.
FACTS = ("attention", "graphs", "compile", "captured", "layers", "load_seconds", "facts_missing")


def words(said: Sequence[str] | None = None) -> argparse.Namespace:
    """The command's words."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="file for all numbers")
    parser.add_argument("--only", default="", help=f"sections, of {', '.join(SECTIONS)} (all if none), and {EXTRA[0]}")
    parser.add_argument("--minutes", type=float, default=8.0, help="everything ends by then")
    parser.add_argument("--soaks", default="", help=f"paths to soak, of {', '.join(SOAKS + EXTRA_SOAKS)}")
    parser.add_argument("--soak-seconds", type=float, default=100.0, help="each soak; they run beside each other")
    parser.add_argument("--soak-replays", type=int, default=0, help="of each path at least, else it is wrong")
    parser.add_argument("--soak-compositions", type=int, default=0, help="changes of each path's batch at least")
    parser.add_argument("--jobs", type=int, default=max(2, min(10, (os.cpu_count() or 4) * 5 // 8)), help="at a time")
    parser.add_argument("--gpus", type=int, default=1, choices=(1, 2), help="used by turns; two also serve as a pair")
    parser.add_argument("--work", type=Path, help="folder for checkpoints and logs; a temporary one by default")
    found = parser.parse_args(said)
    for option, choices, more in (("only", SECTIONS, EXTRA), ("soaks", SOAKS, EXTRA_SOAKS)):
        named = [one for one in getattr(found, option).split(",") if one]
        if unknown := [one for one in named if one not in choices + more]:
            parser.error(f"--{option} {','.join(unknown)}: choose from {', '.join(choices + more)}")
        setattr(found, option, list(dict.fromkeys(named)) or list(choices))
    least = {"replays": found.soak_replays, "compositions": found.soak_compositions}
    if min(least.values()) < 0:
        parser.error("--soak-replays and --soak-compositions: no fewer than 0")
    if "soak" not in found.only and (any(least.values()) or found.soaks != list(SOAKS)):
        parser.error("--soaks, --soak-replays and --soak-compositions are the section soak's, which --only leaves out")
    found.least = {name: count for name, count in least.items() if count}
    return found


def environment(folder: Path) -> dict[str, str]:
    """What every process gets: no network, no report, caches here, no JIT that no section needs."""
    return {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_USE_DEEP_GEMM": "0",
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        "TRITON_CACHE_DIR": str(folder / "cache" / "triton"),
        "FLASHINFER_WORKSPACE_BASE": os.environ.get("FLASHINFER_WORKSPACE_BASE", str(folder / "cache")),
        "OMP_NUM_THREADS": "2",
        "PYTHONUNBUFFERED": "1",
    }


class Run:
    """One run: its jobs by section, then its checks."""

    def __init__(self, asked: argparse.Namespace, folder: Path):
        self.asked, self.folder = asked, folder
        until = time.monotonic() + asked.minutes * 60 - 5
        self.pool = Pool(folder, width=asked.jobs, until=until, env=environment(folder), devices=asked.gpus)
        self.sites = {"fake": packages.fakes(folder / "site-fake"), "real": packages.real(folder / "site-real")}
        self.kernels = os.environ.get("SPARKFORGE_KERNELS_SITE")
        self.prompts = Prompts(2048).with_chats(2048)
        self.plugin = packages.plugin(folder / "site-plugin")
        self.engines = Engines(self.pool, folder / "tiny", self.prompts, self.sites, made="checkpoint")
        self.wide = Engines(self.pool, folder / "wide", self.prompts, self.sites, made="W.checkpoint")
        self.sharp, self.sharp8 = (
            Engines(self.pool, folder / "tiny" / name, self.prompts, self.sites, made=name) for name in MARGINS
        )
        self.judged: dict[str, list[dict]] = {}

    def fitted(self, name: str) -> Engines:
        """The fitted model that an engine of this name runs on."""
        return self.sharp8 if model_of(name) == "sharp8" else self.sharp

    def asks(self, *sections: str) -> bool:
        """Whether any of them is asked for."""
        return any(section in self.asked.only for section in sections)

    # ---- jobs

    def plan(self) -> list[Job]:
        """All jobs, the longest and most needed first."""
        names: list[str] = []
        fitted = self.asks("sharp", "soak", "captured", "server", "xqa")
        if self.asks("e2e_dense", "attention", "graphs", "decode_kernels"):
            names += ["T.eager"]
        if self.asks("graphs"):
            compiled = ["T.default", "T.compiled", "T.ngram.default", "F.default", "F.compiled", "F.ngram.default"]
            names += [*compiled, "F.eager", "T.full", "F.full", "T.ngram.eager", "T.ngram.full", "F.ngram.eager"]
        if self.asks("attention"):
            names += ["F.eager", "T.fp8.eager", "F.fp8.eager"]
        if self.asks("decode_kernels"):
            names += ["K.fake.default", "K.fake.eager", "K.fake.full"]
            names += list(KERNELS["real"]) if self.kernels else []
        if self.asks("e2e_dense"):
            names += ["T.moetriton.eager"]
        names = list(dict.fromkeys(names))
        jobs = [Job("facts", "facts.py", [str(self.folder / "facts.json")], limit=90)]
        if names or fitted:
            jobs.append(Job("checkpoint", "checkpoint.py", ["tiny", str(self.folder / "tiny")], limit=120))
        soaks = (
            [name for name in self.asked.soaks if self.kernels or not needs_kernels(name)] if self.asks("soak") else []
        )
        if any("F" in name.split(".") for name in names) or fitted or self.asks("wide"):
            jobs.append(Job("jit", "jit.py", [str(self.folder / "jit.json")], limit=420))
        if self.asks("xqa") or any("Q" in name.split(".") for name in soaks):
            jobs.append(Job("jit.xqa", "jit.py", [str(self.folder / "jit.xqa.json"), "--xqa"], limit=420))
        if fitted:
            jobs += self._fitted(soaks)
        if self.asks("dense"):
            jobs.append(Job("dense", "dense.py", [str(self.folder / "dense.json")], limit=200))
        if self.asks("decode_kernels"):
            for kind in ["fake", *(["real"] if self.kernels else [])]:
                jobs.append(self._dense_decode(kind))
        for name in names:
            compared = name in ("T.eager", "F.eager", "T.fp8.eager", "F.fp8.eager", "T.moetriton.eager")
            jobs.append(self.engines.answering(name, probe=compared))
        if names:
            jobs.append(self._score(names))
        if self.asks("wide"):
            jobs += self._wide(after=tuple(names))
        for job in jobs:
            self._with_kernels(job)
        return jobs

    def _fitted(self, soaks: list[str]) -> list[Job]:
        """The fit and all that runs on it."""
        passes = ("hidden.T.eager", "hidden.T.fp8.eager")
        jobs = [self.engines.hidden(name.removeprefix("hidden.")) for name in passes]
        for fit, margin in MARGINS.items():
            of_fit = passes[: 2 if fit == "sharp8" else 1]
            made = [str(self.folder / "tiny"), str(self.folder / f"{fit}.json"), str(margin)]
            arrays = [str(self.folder / f"{name}.npz") for name in of_fit]
            jobs.append(Job(fit, "sharp.py", [*made, *arrays], needs=of_fit, limit=120))
        if self.asks("captured"):
            jobs.append(Job("cutlass", "cutlass_moe.py", [str(self.folder / "cutlass.json")], limit=240))
            jobs += [
                self.fitted(name).soaking(name, min(40.0, self.asked.soak_seconds), 50 + number, beside=40)
                for number, name in enumerate(CAPTURED)
            ]
        seconds, least = self.asked.soak_seconds, self.asked.least
        numbers = {name: number for number, name in enumerate(SOAKS + EXTRA_SOAKS)}
        jobs += [self.fitted(name).soaking(name, seconds, numbers[name], least=least) for name in soaks]
        if self.asks("server"):
            here = Path(__file__).resolve().parent
            for name, gpus, flags in SERVERS:
                if gpus <= self.asked.gpus:
                    jobs.append(self.sharp.serving(name, flags, self.plugin, here, gpus=gpus))
        if self.asks("sharp"):
            jobs += [self.fitted(name).known(name, tops="ngram" not in name) for name, _ in KNOWN]
            jobs += [self.fitted(name).known(name, planted=True) for name in FAULTS]
        if self.asks("xqa"):
            names = [name for name, _ in BY_XQA] + ([] if self.asks("sharp") else ["X.F.eager"])
            jobs += [self.sharp.known(name) for name in names]
        return jobs

    def _with_kernels(self, job: Job) -> None:
        if needs_kernels(job.name) and self.kernels:
            job.env["PYTHONPATH"] = os.pathsep.join([str(self.sites["real"]), self.kernels])

    def _dense_decode(self, kind: str) -> Job:
        name = f"dense.{kind}"
        site = {"PYTHONPATH": str(self.sites[kind])}
        return Job(name, "dense.py", [str(self.folder / f"{name}.json"), "--decode"], env=site, limit=200)

    def _said(self, names: list[str]) -> list[dict]:
        """Everything that engines said, each text once."""
        found: dict[str, dict] = {}
        for name in names:
            arrays, told = self.pool.arrays(name), self.pool.json(name) or {}
            for step, prompts in (("main", self.prompts.main), ("mixed", self.prompts.mixed)):
                for number, reply in enumerate(told.get(step, {}).get("replies", [])):
                    one = {"prompt": prompts[number], "reply": reply}
                    tops = arrays.get(f"{step}.{number}.ids")
                    key = Judge.name(one["prompt"], reply)
                    if tops is not None:
                        one |= {"top_ids": tops.tolist(), "of": name}
                        key = name + key  # its likeliest tokens are its own
                    found[key] = one
        return list(found.values())

    def _score(self, names: list[str]) -> Job:
        def sequences() -> list[dict]:
            self.judged["score"] = self._said(names)
            return self.judged["score"]

        return self.engines.judging("score", sequences, after=tuple(names), own=True)

    def _wide(self, after: tuple[str, ...]) -> list[Job]:
        more = {"kv_cache_memory_bytes": 2 << 30, "gpu_memory_utilization": 0.1}
        names = ("W.T.eager", "W.F.default")
        # Late: its checkpoint, 17 GB, keeps the disk and the processor busy.
        jobs = [Job("W.checkpoint", "checkpoint.py", ["wide", str(self.folder / "wide")], after=after, optional=True)]
        for name in names:
            jobs.append(self.wide.answering(name[2:], probe=True, prefix="W.", **more))

        def sequences() -> list[dict]:
            self.judged["W.score"] = self._said(list(names))
            return self.judged["W.score"]

        jobs.append(self.wide.judging("W.score", sequences, after=names, own=True, **more))
        for job in jobs:
            job.optional = True
        return jobs


def main() -> int:
    """Run, judge, print, write."""
    asked = words()
    record = bound.Run(__file__)
    folder = asked.work or Path(tempfile.mkdtemp(prefix="vllm-gpu-"))
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    run = Run(asked, folder)
    interrupted = None
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended early, it still writes what it has
    try:
        run.pool.run(run.plan())
    except KeyboardInterrupt as stop:
        interrupted = type(stop).__name__
    checks = Sections(run.pool, run.prompts, asked, run.judged, kernels=bool(run.kernels)).checks()
    jobs = {}
    for name, ended in run.pool.ended.items():
        told = run.pool.json(name) or {}
        facts = {key: told[key] for key in FACTS if key in told}
        jobs[name] = {"state": ended.state, "seconds": ended.seconds, "last": ended.last, **facts}
    result = {
        "check": "vllm",
        "models": MODELS,
        "facts": run.pool.json("facts"),
        "seed": SEED,
        "command": ["tools/gpu/vllm/run_all.py", *_options(asked)],
        "seconds": time.monotonic() - begun,
        "interrupted": interrupted,
        "jit": run.pool.json("jit"),
        "checks": judging.as_json(checks),
        "jobs": jobs,
    }
    record.compiled(Path(environment(folder)["FLASHINFER_WORKSPACE_BASE"]))
    record.write(asked.json, json.loads(_without(json.dumps(result, default=str), folder)))
    wrong = [check for check in checks if check.verdict == "wrong"]
    print(f"\n{time.monotonic() - begun:.0f} s; logs in {folder}")
    print("\n".join(table(checks)))
    print(f"{len(checks)} checks, {len(wrong)} wrong, {sum(check.verdict == 'not run' for check in checks)} not run")
    return 1 if wrong or interrupted else 0


def _options(asked: argparse.Namespace) -> list[str]:
    """The command's words without a path of this machine."""
    said = ["--json", asked.json.name, "--minutes", str(asked.minutes), "--soak-seconds", str(asked.soak_seconds)]
    said += ["--jobs", str(asked.jobs), *(["--gpus", str(asked.gpus)] if asked.gpus > 1 else [])]
    for option, choices in (("only", SECTIONS), ("soaks", SOAKS)):
        if (named := getattr(asked, option)) != list(choices):
            said += [f"--{option}", ",".join(named)]
    for name, count in asked.least.items():
        said += [f"--soak-{name}", str(count)]
    return said


def _without(text: str, folder: Path) -> str:
    """The text without this machine's paths."""
    text = text.replace(str(folder), "WORK")
    # Of any other absolute path, the last two parts.
    return re.sub(r"(?<![\w.])(?:/[\w.+@-]+)+(/[\w.+@-]+/[\w.+@-]+)", r"...\1", text)


if __name__ == "__main__":
    sys.exit(main())
