"""Proofs of the vLLM series on a GPU of compute capability 9.0: run them all, or some, within so many minutes.

    python tests/patches/vllm/gpu/run_all.py --json result.json [--only dense,graphs] [--minutes 8]

Sections:
  dense           the quantizer of V-06 against brute force, Marlin against float64, at gpt-oss's own shapes
  e2e_dense       an MXFP4 gpt-oss with --mxfp4-layers all against a BF16 twin of its dequantized weights
  attention       FlashInfer FA2 with sinks against TRITON_ATTN, KV in BF16 and FP8; the test opens the gate
  graphs          eager against full and piecewise CUDA graphs, token for token; n-gram speculation off and on
  decode_kernels  V-10 with fakes that count, and with sparkforge_kernels from the folder in $SPARKFORGE_KERNELS_SITE
  sharp           the fitted model (sharp.py): every token equal, in every graph mode, n-gram off and on; faults planted
  soak            requests that come and go for --soak-seconds on every captured path, on the fitted model, every token
  captured        V-12: every node, address, descriptor and tactic of every graph, equal at replay; defects planted
  server          `vllm serve` over HTTP on the fitted model: chats, completions, streamed, many at once
  wide            the same model at full width, two layers: e2e_dense and attention, if time is left

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
from pathlib import Path

import judge as judging
import packages
import verdicts
from judge import LOGIT_LIMIT, MEAN_LIMIT, REGRET_LIMIT, Check, Judge
from plan import SEED, Engines, Prompts
from pool import Job, Pool

SECTIONS = (
    "sharp", "soak", "captured", "server", "dense", "e2e_dense", "attention", "graphs", "decode_kernels", "wide",
)  # fmt: skip
# Name, engine, the engine whose tokens it must repeat.
GRAPHS = (
    ("full", "T.full", "T.eager"),
    ("compiled, piecewise and full", "T.default", "T.compiled"),
    ("compiled against eager", "T.compiled", "T.eager"),
    ("n-gram against none, eager", "T.ngram.eager", "T.eager"),
    ("n-gram, full", "T.ngram.full", "T.ngram.eager"),
    ("n-gram, compiled", "T.ngram.default", "T.ngram.eager"),
    ("full", "F.full", "F.eager"),
    ("compiled, piecewise and full", "F.default", "F.compiled"),
    ("compiled against eager", "F.compiled", "F.eager"),
    ("n-gram against none, eager", "F.ngram.eager", "F.eager"),
    ("n-gram, compiled", "F.ngram.default", "F.ngram.eager"),
)
KERNELS = {"fake": ("K.fake.eager", "K.fake.full", "K.fake.default"), "real": ("K.real.eager", "K.real.full")}
# Name, the engine whose logits its own are held to.
KNOWN = (
    ("X.T.eager", "X.T.eager"), ("X.T.full", "X.T.eager"), ("X.T.default", "X.T.compiled"), ("X.T.compiled", "X.T.eager"),
    ("X.T.ngram.eager", "X.T.eager"), ("X.T.ngram.full", "X.T.eager"), ("X.T.ngram.default", "X.T.eager"),
    ("X.F.eager", "X.T.eager"), ("X.F.full", "X.F.eager"), ("X.F.default", "X.F.compiled"), ("X.F.compiled", "X.F.eager"),
    ("X.F.ngram.eager", "X.F.eager"), ("X.F.ngram.default", "X.F.eager"),
    ("X.T.fp8.eager", "X.T.fp8.eager"), ("X.T.fp8.compiled", "X.T.fp8.eager"), ("X.T.fp8.default", "X.T.fp8.compiled"), ("X.T.fp8.ngram.default", "X.T.fp8.eager"),
    ("X.F.fp8.eager", "X.F.fp8.eager"), ("X.F.fp8.full", "X.F.fp8.eager"), ("X.F.fp8.compiled", "X.F.fp8.eager"),
    ("X.F.fp8.default", "X.F.fp8.compiled"),
)  # fmt: skip
FAULTS = "X.T.faults.eager"
SOAKS = (
    "S.X.F.default", "S.X.F.fp8.default", "S.X.T.default", "S.X.T.fp8.default", "S.X.T.ngram.default", "S.X.F.ngram.default",
    "S.X.F.full", "S.X.F.fp8.full", "S.X.T.full", "S.X.T.ngram.full", "S.X.T.fp8.ngram.default", "S.X.K.real.default",
)  # fmt: skip
CAPTURED = ("C.X.F.default", "C.X.F.fp8.default", "C.X.T.default", "C.X.T.ngram.default")
SERVED = "server.F.default"
SERVER_FLAGS = [
    "--dtype=bfloat16", "--max-model-len=1024", "--max-num-seqs=16", "--max-num-batched-tokens=2048",
    "--gpu-memory-utilization=0.05", f"--kv-cache-memory-bytes={1 << 30}", "--moe-backend=marlin", "--mxfp4-layers=all",
    "--attention-backend=FLASHINFER", "--no-enable-flashinfer-autotune",
]  # fmt: skip


def words() -> argparse.Namespace:
    """The command's words."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="file for all numbers")
    parser.add_argument("--only", default="", help=f"sections, of {', '.join(SECTIONS)}")
    parser.add_argument("--minutes", type=float, default=8.0, help="everything ends by then")
    parser.add_argument("--soak-seconds", type=float, default=100.0, help="each soak; they run beside each other")
    parser.add_argument("--jobs", type=int, default=max(2, min(10, (os.cpu_count() or 4) * 5 // 8)), help="at a time")
    parser.add_argument("--work", type=Path, help="folder for checkpoints and logs; a temporary one by default")
    found = parser.parse_args()
    found.only = [one for one in found.only.split(",") if one] or list(SECTIONS)
    if unknown := [one for one in found.only if one not in SECTIONS]:
        parser.error(f"--only {','.join(unknown)}: choose from {', '.join(SECTIONS)}")
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
        self.pool = Pool(folder, width=asked.jobs, until=until, env=environment(folder))
        self.sites = {"fake": packages.fakes(folder / "site-fake"), "real": packages.real(folder / "site-real")}
        self.kernels = os.environ.get("SPARKFORGE_KERNELS_SITE")
        self.prompts = Prompts(2048).with_chats(2048)
        self.plugin = packages.plugin(folder / "site-plugin")
        self.engines = Engines(self.pool, folder / "tiny", self.prompts, self.sites, made="checkpoint")
        self.wide = Engines(self.pool, folder / "wide", self.prompts, self.sites, made="W.checkpoint")
        self.sharp = Engines(self.pool, folder / "tiny" / "sharp", self.prompts, self.sites, made="sharp")
        self.judged: dict[str, list[dict]] = {}

    def asks(self, *sections: str) -> bool:
        """Whether any of them is asked for."""
        return any(section in self.asked.only for section in sections)

    # ---- jobs

    def plan(self) -> list[Job]:
        """All jobs, the longest and most needed first."""
        names: list[str] = []
        fitted = self.asks("sharp", "soak", "captured", "server")
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
        soaks = [name for name in SOAKS if "real" not in name or self.kernels] if self.asks("soak") else []
        if any("F" in name.split(".") for name in names) or fitted or self.asks("wide"):
            jobs.append(Job("jit", "jit.py", [str(self.folder / "jit.json")], limit=420))
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
        made = [str(self.folder / "tiny"), str(self.folder / "sharp.json")]
        arrays = [str(self.folder / f"{name}.npz") for name in passes]
        jobs.append(Job("sharp", "sharp.py", [*made, *arrays], needs=passes, limit=120))
        if self.asks("captured"):
            jobs.append(Job("cutlass", "cutlass_moe.py", [str(self.folder / "cutlass.json")], limit=240))
            jobs += [
                self.sharp.soaking(name, min(40.0, self.asked.soak_seconds), 50 + number, beside=40)
                for number, name in enumerate(CAPTURED)
            ]
        jobs += [self.sharp.soaking(name, self.asked.soak_seconds, number) for number, name in enumerate(soaks)]
        if self.asks("server"):
            jobs.append(self.sharp.serving(SERVED, SERVER_FLAGS, self.plugin, Path(__file__).resolve().parent))
        if self.asks("sharp"):
            jobs += [self.sharp.known(name, tops="ngram" not in name) for name, _ in KNOWN]
            jobs.append(self.sharp.known(FAULTS, planted=True))
        return jobs

    def _with_kernels(self, job: Job) -> None:
        if "real" in job.name.split(".") and self.kernels:
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

    # ---- checks

    def checks(self) -> list[Check]:
        """Every check of the sections asked for; one that breaks is a line of its own."""
        tiny, wide = Judge(self.pool), Judge(self.pool)
        for label, sequences in self.judged.items():
            (wide if label.startswith("W.") else tiny).take_scores(label, sequences)
        sections = {
            "dense": lambda: judging.dense(tiny),
            "e2e_dense": lambda: self._e2e(tiny),
            "attention": lambda: self._attention(tiny),
            "graphs": lambda: self._graphs(tiny),
            "decode_kernels": lambda: self._decode(tiny),
            "sharp": lambda: self._sharp(tiny),
            "soak": lambda: self._soak(tiny),
            "captured": lambda: self._captured(tiny),
            "server": lambda: verdicts.server(tiny, SERVED),
            "wide": lambda: self._wide_checks(wide),
        }
        for name in self.asked.only:
            try:
                sections[name]()
            except Exception as error:  # what was judged before it is still shown
                tiny.add(name, "the judging itself", "wrong", f"{type(error).__name__}: {error}")
        return tiny.checks + wide.checks

    def _e2e(self, judge: Judge) -> None:
        limits = (REGRET_LIMIT, MEAN_LIMIT)
        for name, job in (("Marlin", "T.eager"), ("Triton MoE", "T.moetriton.eager")):
            judge.logits("e2e_dense", f"{name}, prefill against BF16", job, "score", LOGIT_LIMIT)
            judge.decode_logits("e2e_dense", f"{name}, decode against BF16", job, self.prompts.main, LOGIT_LIMIT)
            pairs = list(zip(self.prompts.main, judge.replies(job, "main"), strict=False))
            judge.regrets_of("e2e_dense", f"{name}, greedy regret", job, pairs, limits)
        judge.own("e2e_dense", "the reference's own regret", "score")

    def _attention(self, judge: Judge) -> None:
        judging.built(judge, "jit")
        judge.logits("attention", "BF16 KV, prefill against Triton", "F.eager", "T.eager", LOGIT_LIMIT)
        plain, fp8 = (REGRET_LIMIT, MEAN_LIMIT), (judging.REGRET_LIMIT_FP8, judging.MEAN_LIMIT_FP8)
        for kind, job, limit, limits in (
            ("BF16 KV, FlashInfer", "F.eager", LOGIT_LIMIT, plain),
            ("FP8 KV, FlashInfer", "F.fp8.eager", judging.LOGIT_LIMIT_FP8, fp8),
            ("FP8 KV, Triton", "T.fp8.eager", judging.LOGIT_LIMIT_FP8_QUERIES, fp8),
        ):
            judge.logits("attention", f"{kind}, prefill", job, "score", limit)
            judge.decode_logits("attention", f"{kind}, decode", job, self.prompts.main, limit)
            pairs = list(zip(self.prompts.main, judge.replies(job, "main"), strict=False))
            judge.regrets_of("attention", f"{kind}, greedy regret", job, pairs, limits)
        facts = self.pool.json("F.eager") or {}
        if facts:
            right = judging.verdict(facts.get("attention") == ["FLASHINFER"])
            judge.add("attention", "backend in use", right, str(facts.get("attention")))

    def _graphs(self, judge: Judge) -> None:
        prompts = self.prompts.main + self.prompts.mixed
        for what, job, base in GRAPHS:
            label = f"{'FlashInfer' if job.startswith('F') else 'Triton'}, {what}"
            facts = self.pool.json(job) or {}
            mode = f", {facts['graphs'].rsplit('.', 1)[-1]}" if "graphs" in facts else ""
            judge.tokens("graphs", label, job, base, prompts, more=mode)

    def _decode(self, judge: Judge) -> None:
        prompts = self.prompts.main + self.prompts.mixed
        for kind in ("fake", "real"):
            if kind == "real" and not self.kernels:
                judge.add("decode_kernels", "real", "not run", "SPARKFORGE_KERNELS_SITE is not set")
                continue
            name = f"dense.{kind}"
            if not judge.missing("decode_kernels", f"{kind}, layers", name):
                layers = (self.pool.json(name) or {}).get("layers", {"error": "did not run"})
                judging.products(judge, "decode_kernels", layers, decode=True, label=kind)
            eager = KERNELS[kind][0]
            for job in KERNELS[kind]:
                base = "T.eager" if job == eager else eager
                judge.tokens("decode_kernels", f"{job} as {base}", job, base, prompts)
                judging.kernels(judge, "decode_kernels", f"{job} ran", job, None if job == eager else eager)

    def _soak(self, judge: Judge) -> None:
        for name in SOAKS:
            if "real" not in name or self.kernels:
                verdicts.soak(judge, name)
        found = [(self.pool.json(name) or {}).get("soak", {}) for name in SOAKS]
        keys = ("replays", "replays FULL", "replays PIECEWISE", "compositions", "mixed", "requests", "equal", "differing")
        total = {key: sum(one.get(key, 0) for one in found) for key in keys}
        said = ", ".join(f"{value} {key}" for key, value in total.items())
        enough = total["replays"] >= 200_000 and total["compositions"] >= 10_000
        judge.add("soak", "all together", judging.verdict(enough, not total["differing"]), said, **total)

    def _sharp(self, judge: Judge) -> None:
        verdicts.fitted(judge)
        wanted = self.prompts.replies["main"] + self.prompts.replies["mixed"]
        for name, base in KNOWN:
            verdicts.known(judge, f"{name} as {base}" if name != base else name, name, base, wanted)
        verdicts.planted(judge, FAULTS, wanted)

    def _captured(self, judge: Judge) -> None:
        for name in CAPTURED:
            verdicts.captured(judge, name)
        verdicts.cutlass(judge)

    def _wide_checks(self, judge: Judge) -> None:
        prompts = self.prompts.main
        for job in ("W.T.eager", "W.F.default"):
            judge.logits("wide", f"{job[2:]}, prefill against BF16", job, "W.score", LOGIT_LIMIT)
            judge.decode_logits("wide", f"{job[2:]}, decode against BF16", job, prompts, LOGIT_LIMIT)
            pairs = list(zip(prompts, judge.replies(job, "main"), strict=False))
            judge.regrets_of("wide", f"{job[2:]}, greedy regret", job, pairs, (REGRET_LIMIT, MEAN_LIMIT))


def main() -> int:
    """Run, judge, print, write."""
    asked = words()
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
    checks = run.checks()
    jobs = {}
    for name, ended in run.pool.ended.items():
        told = run.pool.json(name) or {}
        facts = {key: told[key] for key in ("attention", "graphs", "compile", "captured", "layers", "load_seconds", "facts_missing") if key in told}
        jobs[name] = {"state": ended.state, "seconds": ended.seconds, "last": ended.last, **facts}
    result = {
        "facts": run.pool.json("facts"),
        "seed": SEED,
        "command": ["tests/patches/vllm/gpu/run_all.py", *_options(asked)],
        "seconds": time.monotonic() - begun,
        "interrupted": interrupted,
        "jit": run.pool.json("jit"),
        "checks": judging.as_json(checks),
        "jobs": jobs,
    }
    asked.json.write_text(_without(json.dumps(result, indent=1, default=str), folder) + "\n")
    wrong = [check for check in checks if check.verdict == "wrong"]
    print(f"\n{time.monotonic() - begun:.0f} s; logs in {folder}")
    print("\n".join(table(checks)))
    print(f"{len(checks)} checks, {len(wrong)} wrong, {sum(check.verdict == 'not run' for check in checks)} not run")
    return 1 if wrong or interrupted else 0


def table(checks: list[Check], most: int = 42) -> list[str]:
    """A line for each check, or where those are too many, one for all that is right in a section."""
    short: set[str] = set()
    for section in ("sharp", "decode_kernels", "wide", "e2e_dense", "graphs", "attention", "soak"):
        right = sum(check.verdict == "right" and check.section in short for check in checks)
        if len(checks) - right + len(short) <= most:
            break
        short.add(section)
    lines = [check.line() for check in checks if not (check.verdict == "right" and check.section in short)]
    for section in SECTIONS:
        names = [check.name for check in checks if check.verdict == "right" and check.section == section]
        if section in short and names:
            lines.append(f"{section:14} {f'{len(names)} others':34} right    {'; '.join(names)}"[:150])
    return lines


def _options(asked: argparse.Namespace) -> list[str]:
    """The command's words without a path of this machine."""
    said = ["--json", asked.json.name, "--minutes", str(asked.minutes), "--soak-seconds", str(asked.soak_seconds)]
    return [*said, "--jobs", str(asked.jobs), *(["--only", ",".join(asked.only)] if asked.only != list(SECTIONS) else [])]


def _without(text: str, folder: Path) -> str:
    """The text without this machine's paths."""
    text = text.replace(str(folder), "WORK")
    # Of any other absolute path, the last two parts.
    return re.sub(r"(?<![\w.])(?:/[\w.+@-]+)+(/[\w.+@-]+/[\w.+@-]+)", r"...\1", text)


if __name__ == "__main__":
    sys.exit(main())
