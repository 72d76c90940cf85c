"""The sections of a run: which engines each takes, and what is demanded of them."""

from __future__ import annotations

import argparse

import judge as judging
import verdicts
from judge import FP8, FP8_QUERIES, PLAIN, WIDE, Check, Judge
from plan import Prompts
from pool import Pool

SECTIONS = (
    "sharp", "soak", "captured", "server", "dense", "e2e_dense", "attention", "graphs", "decode_kernels", "wide",
)  # fmt: skip
EXTRA = ("xqa",)  # run where it is named
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
BY_XQA = (
    ("X.Q.eager", "X.F.eager"), ("X.Q.full", "X.Q.eager"), ("X.Q.compiled", "X.Q.eager"), ("X.Q.default", "X.Q.compiled"),
)  # fmt: skip
FAULTS = ("X.T.faults.eager", "X.T.fp8.faults.eager")
SOAKS = (
    "S.X.F.default", "S.X.F.fp8.default", "S.X.T.default", "S.X.T.fp8.default", "S.X.T.ngram.default", "S.X.F.ngram.default",
    "S.X.F.full", "S.X.F.fp8.full", "S.X.T.full", "S.X.T.ngram.full", "S.X.T.fp8.ngram.default", "S.X.K.real.default",
)  # fmt: skip
EXTRA_SOAKS = ("S.X.Q.default", "S.X.Q.full")
CAPTURED = ("C.X.F.default", "C.X.F.fp8.default", "C.X.T.default", "C.X.T.ngram.default")
SERVER_FLAGS = [
    "--dtype=bfloat16", "--max-model-len=1024", "--max-num-seqs=16", "--max-num-batched-tokens=2048",
    "--gpu-memory-utilization=0.05", f"--kv-cache-memory-bytes={1 << 30}", "--moe-backend=marlin", "--mxfp4-layers=all",
    "--attention-backend=FLASHINFER", "--no-enable-flashinfer-autotune",
]  # fmt: skip
# Name, GPUs, flags. Two GPUs as two machines are: each layer divided in two, sums by NCCL and not over NVLink's own path.
SERVERS = (
    ("server.F.default", 1, SERVER_FLAGS),
    ("server.F.tp2", 2, [*SERVER_FLAGS, "--tensor-parallel-size=2", "--disable-custom-all-reduce"]),
)


def needs_kernels(name: str) -> bool:
    """Whether an engine or a job of this name takes the compiled kernels."""
    return "real" in name.split(".")


class Sections:
    """What is demanded of a run that has ended."""

    def __init__(
        self, pool: Pool, prompts: Prompts, asked: argparse.Namespace, judged: dict[str, list[dict]], *, kernels: bool
    ):
        self.pool, self.prompts, self.asked, self.judged, self.kernels = pool, prompts, asked, judged, kernels

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
            "server": lambda: self._servers(tiny),
            "wide": lambda: self._wide_checks(wide),
            "xqa": lambda: self._xqa(tiny),
        }
        for name in self.asked.only:
            try:
                sections[name]()
            except Exception as error:  # what was judged before it is still shown
                tiny.add(name, "the judging itself", f"{type(error).__name__}: {error}", ("ended well", "==", True))
        return tiny.checks + wide.checks

    def _e2e(self, judge: Judge) -> None:
        for name, job in (("Marlin", "T.eager"), ("Triton MoE", "T.moetriton.eager")):
            judge.logits("e2e_dense", f"{name}, prefill against BF16", job, "score", "logit rms")
            judge.decode_logits("e2e_dense", f"{name}, decode against BF16", job, self.prompts.main, "logit rms")
            pairs = list(zip(self.prompts.main, judge.replies(job, "main"), strict=False))
            judge.regrets_of("e2e_dense", f"{name}, greedy regret", job, pairs)
        judge.own("e2e_dense", "the reference's own regret", "score")

    def _attention(self, judge: Judge) -> None:
        judging.built(judge, "jit")
        judge.logits("attention", "BF16 KV, prefill against Triton", "F.eager", "T.eager", "logit rms")
        for kind, job, limit, limits in (
            ("BF16 KV, FlashInfer", "F.eager", "logit rms", PLAIN),
            ("FP8 KV, FlashInfer", "F.fp8.eager", "logit rms, FP8 KV", FP8),
            ("FP8 KV, Triton", "T.fp8.eager", "logit rms, FP8 KV and queries", FP8_QUERIES),
        ):
            judge.logits("attention", f"{kind}, prefill", job, "score", limit)
            judge.decode_logits("attention", f"{kind}, decode", job, self.prompts.main, limit)
            pairs = list(zip(self.prompts.main, judge.replies(job, "main"), strict=False))
            judge.regrets_of("attention", f"{kind}, greedy regret", job, pairs, limits)
        facts = self.pool.json("F.eager") or {}
        if facts:
            used = facts.get("attention")
            judge.add("attention", "backend in use", str(used), ("backends", "==", ["FLASHINFER"]), backends=used)

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
                judge.skip("decode_kernels", "real", "SPARKFORGE_KERNELS_SITE is not set")
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
        for name in self.asked.soaks:
            if needs_kernels(name) and not self.kernels:
                judge.skip("soak", name, "SPARKFORGE_KERNELS_SITE is not set")
            else:
                verdicts.soak(judge, name, self.asked.least)
        found = [(self.pool.json(name) or {}).get("soak", {}) for name in self.asked.soaks]
        keys = (
            "replays",
            "replays FULL",
            "replays PIECEWISE",
            "compositions",
            "mixed",
            "requests",
            "equal",
            "differing",
        )
        total = {key: sum(one.get(key, 0) for one in found) for key in keys}
        judge.tell("soak", "all together", ", ".join(f"{value} {key}" for key, value in total.items()), **total)

    def _sharp(self, judge: Judge) -> None:
        for fitted in ("sharp", "sharp8"):
            verdicts.fitted(judge, fitted)
        wanted = self.prompts.replies["main"] + self.prompts.replies["mixed"]
        for name, base in KNOWN:
            verdicts.known(judge, f"{name} as {base}" if name != base else name, name, base, wanted)
        for name in FAULTS:
            verdicts.planted(judge, name, wanted)

    def _servers(self, judge: Judge) -> None:
        for name, gpus, _ in SERVERS:
            if gpus > self.asked.gpus:
                judge.skip("server", name, f"needs {gpus} GPUs (--gpus)")
            else:
                verdicts.server(judge, name)

    def _xqa(self, judge: Judge) -> None:
        wanted = self.prompts.replies["main"] + self.prompts.replies["mixed"]
        for name, base in BY_XQA:
            verdicts.known(judge, f"{name} as {base}", name, base, wanted, section="xqa")

    def _captured(self, judge: Judge) -> None:
        for name in CAPTURED:
            verdicts.captured(judge, name)
        verdicts.cutlass(judge)

    def _wide_checks(self, judge: Judge) -> None:
        prompts = self.prompts.main
        for job in ("W.T.eager", "W.F.default"):
            judge.logits("wide", f"{job[2:]}, prefill against BF16", job, "W.score", "logit rms, wide")
            judge.decode_logits("wide", f"{job[2:]}, decode against BF16", job, prompts, "logit rms, wide")
            pairs = list(zip(prompts, judge.replies(job, "main"), strict=False))
            judge.regrets_of("wide", f"{job[2:]}, greedy regret", job, pairs, WIDE)


def table(checks: list[Check], most: int = 42) -> list[str]:
    """A line for each check, or where those are too many, one for all that is right in a section."""
    short: set[str] = set()
    for section in ("sharp", "decode_kernels", "wide", "e2e_dense", "graphs", "attention", "soak"):
        right = sum(check.verdict == "right" and check.section in short for check in checks)
        if len(checks) - right + len(short) <= most:
            break
        short.add(section)
    lines = [check.line() for check in checks if not (check.verdict == "right" and check.section in short)]
    for section in (*SECTIONS, *EXTRA):
        names = [check.name for check in checks if check.verdict == "right" and check.section == section]
        if section in short and names:
            lines.append(f"{section:14} {f'{len(names)} others':34} right    {'; '.join(names)}"[:150])
    return lines
