"""What the engines' answers mean: each check with its limit, what was measured, and a verdict.

Logits and regrets through a whole model are in spreads: parts of the standard deviation of a place's logits over the
vocabulary. The limits stand between what arithmetic does to the tiny model and what faults do, measured on a CPU on
598 places:
                                                     rms of logits   largest regret   mean regret
  BF16 against float32, transformers                     0.039            0.12           0.0019
  BF16 of vLLM against BF16 of transformers              0.044            0.25           0.0035
  32 of o_proj's 1024 columns doubled in one layer       0.19             0.82           0.065
  one expert of eight negated in one layer               0.27             1.9            0.13
  sinks of one layer rolled by a head                    0.31             2.1            0.18
  a window of 31 for 32                                  0.35             1.5            0.19
  no sinks                                               0.79             4.1            1.1
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field

import numpy as np
from pool import Pool

# Root of the mean square of logit differences.
LOGIT_LIMIT = 0.1
# Regret: how far below the judge's best logit an engine's own choice lies. Largest, and mean over all places.
REGRET_LIMIT = 0.5
MEAN_LIMIT = 0.015
# FP8 KV against BF16 KV, simulated on this model in transformers: rms 0.14, largest regret 0.6, mean 0.033. Triton
# rounds the queries to FP8 too, FlashInfer does not: that makes it 0.19 in all.
LOGIT_LIMIT_FP8, LOGIT_LIMIT_FP8_QUERIES = 0.22, 0.3
REGRET_LIMIT_FP8 = 1.2
MEAN_LIMIT_FP8 = 0.07


@dataclass
class Check:
    """One line of the table.

    Attributes:
        verdict: "right", "wrong", "not run" (with the reason in `said`) or "told" (nothing was to be judged).
    """

    section: str
    name: str
    verdict: str
    said: str
    numbers: dict = field(default_factory=dict)

    def line(self) -> str:
        """For people."""
        return f"{self.section:14} {self.name:34} {self.verdict:8} {self.said}"[:150]


def verdict(*conditions: bool) -> str:
    """Right where all hold."""
    return "right" if all(conditions) else "wrong"


class Judge:
    """Checks of one model's engines."""

    def __init__(self, pool: Pool):
        self.pool = pool
        self.checks: list[Check] = []
        self.scored: dict[str, dict] = {}

    def missing(self, section: str, name: str, *jobs: str) -> bool:
        """Whether a job that the check needs wrote nothing; then a line says why."""
        for job in jobs:
            if self.pool.json(job) is None or self.pool.ended[job].state in ("failed", "timeout", "skipped"):
                ended = self.pool.ended.get(job)
                why = (
                    f"{job} {ended.state}: {ended.last[-1] if ended.last else ''}"
                    if ended
                    else f"{job} was not asked for"
                )
                self.checks.append(
                    Check(section, name, "wrong" if ended and ended.state != "skipped" else "not run", why)
                )
                return True
        return False

    def add(self, section: str, name: str, verdict: str, said: str, **numbers) -> None:
        """One more line."""
        self.checks.append(Check(section, name, verdict, said, numbers))

    # ---- scores

    def take_scores(self, job: str, sequences: list[dict]) -> None:
        """Remember a scoring job's regrets by what was scored, and the logits that one engine asked for."""
        arrays = self.pool.arrays(job)
        for number, one in enumerate(sequences):
            key = f"judged.{number}"
            if f"{key}.regret" in arrays:
                found = {name: arrays.get(f"{key}.{name}") for name in ("regret", "spread", "at_top_ids")}
                name = self.name(one["prompt"], one["reply"])
                self.scored[name] = found
                self.scored[one.get("of", "") + name] = found

    @staticmethod
    def name(prompt: list[int], reply: list[int]) -> str:
        """Name of what was scored."""
        return f":{prompt}:{reply}"

    def regret(self, pairs: list[tuple[list[int], list[int]]]) -> dict | None:
        """Regret of replies in spreads: largest, mean, places where the judge would say something else."""
        found = [self.scored.get(self.name(prompt, reply)) for prompt, reply in pairs]
        if not found or any(one is None for one in found):
            return None
        regret = np.concatenate([one["regret"] / one["spread"] for one in found])
        return {
            "places": int(regret.size),
            "largest": float(regret.max()),
            "mean": float(regret.mean()),
            "others": int((regret > 0).sum()),
            "finite": bool(np.isfinite(regret).all()),
        }

    def replies(self, job: str, *steps: str) -> list[list[int]]:
        """Replies of an engine."""
        found = self.pool.json(job) or {}
        return [reply for step in steps for reply in found.get(step, {}).get("replies", [])]

    def logits(self, section: str, name: str, one: str, other: str, limit: float) -> None:
        """Every logit of the probe, one engine against another, both in one prefill."""
        if self.missing(section, name, one, other):
            return
        mine, theirs = self.pool.arrays(one), self.pool.arrays(other)
        keys = sorted(key for key in mine if key.startswith("probe.") and key.endswith(".logits"))
        if not keys or any(key not in theirs for key in keys):
            self.add(section, name, "wrong", "no probe")
            return
        a, b = (np.concatenate([arrays[key] for key in keys]).astype(np.float64) for arrays in (mine, theirs))
        spread = b.std(axis=1, keepdims=True)
        off = (a - b) / spread
        rms, most = float(np.sqrt((off**2).mean())), float(np.abs(off).max())
        finite = bool(np.isfinite(a).all() and np.isfinite(b).all())
        said = f"rms {rms:.4f} (limit {limit}), largest {most:.3f} spreads, {a.size} logits"
        self.add(
            section,
            name,
            verdict(finite, rms <= limit),
            said,
            rms=rms,
            largest=most,
            limit=limit,
            logits=int(a.size),
            mean_spread=float(spread.mean()),
            places=int(a.shape[0]),
            same_choice=float((a.argmax(axis=1) == b.argmax(axis=1)).mean()),
        )

    def decode_logits(self, section: str, name: str, job: str, prompts: list[list[int]], limit: float) -> None:
        """Logits of the likeliest tokens at each decode step against the judge's prefill of the same text."""
        if self.missing(section, name, job):
            return
        arrays, off = self.pool.arrays(job), []
        for number, (prompt, reply) in enumerate(zip(prompts, self.replies(job, "main"), strict=True)):
            judged = self.scored.get(job + self.name(prompt, reply))
            logits = arrays.get(f"main.{number}.logits")
            if judged is None or logits is None or judged["at_top_ids"] is None:
                self.add(section, name, "not run", "not scored")
                return
            off.append((logits - judged["at_top_ids"]) / judged["spread"][:, None])
        all_off = np.concatenate(off).astype(np.float64)
        rms, most = float(np.sqrt((all_off**2).mean())), float(np.abs(all_off).max())
        said = f"rms {rms:.4f} (limit {limit}), largest {most:.3f} spreads, {all_off.size} logits"
        right = verdict(bool(np.isfinite(all_off).all()), rms <= limit)
        self.add(section, name, right, said, rms=rms, largest=most, limit=limit, logits=int(all_off.size))

    def regrets_of(self, section: str, name: str, job: str, pairs, limits: tuple[float, float]) -> None:
        """Greedy regret of what an engine said."""
        if self.missing(section, name, job):
            return
        found = self.regret(pairs)
        if found is None:
            self.add(section, name, "not run", "not scored")
            return
        largest, mean = limits
        said = (
            f"largest {found['largest']:.3f} (limit {largest}), mean {found['mean']:.5f} (limit {mean}) spreads, "
            f"{found['others']} of {found['places']} differ"
        )
        right = verdict(found["finite"], found["largest"] <= largest, found["mean"] <= mean)
        self.add(section, name, right, said, **found, limits=limits)

    def own(self, section: str, name: str, job: str) -> None:
        """The floor: what the reference's decode says, by the reference's own prefill."""
        if self.missing(section, name, job):
            return
        arrays = self.pool.arrays(job)
        keys = sorted(key[: -len(".regret")] for key in arrays if key.startswith("own.") and key.endswith(".regret"))
        if not keys:
            self.add(section, name, "not run", "not scored")
            return
        regret = np.concatenate([arrays[f"{key}.regret"] / arrays[f"{key}.spread"] for key in keys])
        said = (
            f"largest {regret.max():.3f}, mean {regret.mean():.5f} spreads, {int((regret > 0).sum())} of {regret.size}"
        )
        self.add(section, name, "told", said, largest=float(regret.max()), mean=float(regret.mean()))

    def tokens(self, section: str, name: str, job: str, base: str, prompts, more: str = "") -> None:
        """Token for token; where a reply differs, its regret must be that of a near tie."""
        if self.missing(section, name, job, base):
            return
        mine, theirs = self.replies(job, "main", "mixed"), self.replies(base, "main", "mixed")
        equal = sum(a == b for a, b in zip(mine, theirs, strict=True))
        tokens = sum(len(reply) for reply in mine)
        first = [
            next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), -1)
            for a, b in zip(mine, theirs, strict=True)
        ]
        same = sum(len(reply) if at < 0 else at for reply, at in zip(mine, first, strict=True))
        facts = self.pool.json(job) or {}
        numbers = {
            "replies": len(mine),
            "equal": equal,
            "tokens": tokens,
            "tokens before a difference": same,
            **{
                step: {key: value for key, value in facts.get(step, {}).items() if key != "replies"}
                for step in ("main", "mixed")
            },
        }
        sum_of = lambda key: sum(facts.get(step, {}).get(key, 0) for step in ("main", "mixed"))  # noqa: E731
        replayed, drafted = sum_of("replays"), sum_of("drafted")
        said = (
            f"{equal} of {len(mine)} replies equal, {replayed} replays{f', {drafted} drafted' if drafted else ''}{more}"
        )
        right = equal == len(mine)
        if not right:
            found = self.regret([(p, r) for p, r in zip(prompts, mine, strict=True)])
            numbers["regret"] = found
            if found is None:
                said += ", differing ones not scored"
            else:
                right = found["finite"] and found["largest"] <= REGRET_LIMIT
                said += f", near ties: regret {found['largest']:.3f} (limit {REGRET_LIMIT})"
        if any(word in job for word in ("full", "default")):
            whole, uniform, mode = sum_of("replays FULL"), sum_of("uniform"), str(facts.get("graphs", ""))
            # A whole graph is for decode of as many tokens by each request, one and its drafts. Where n-gram finds no
            # draft for one of them the batch is not uniform, and without pieces nothing is there to be replayed.
            if "FULL" in mode and whole != uniform:
                right, said = False, said + f", {whole} WHOLE GRAPHS REPLAYED IN {uniform} UNIFORM BATCHES"
            elif not replayed and (uniform or "PIECEWISE" in mode):
                right, said = False, said + ", NO GRAPH WAS REPLAYED"
            elif not replayed:
                said += ", no batch was uniform: no graph to replay"
        self.add(section, name, verdict(right), said, **numbers)


def built(judge: Judge, job: str) -> None:
    """FlashInfer's modules with sinks; without them its engines are not run."""
    if not judge.missing("attention", "FlashInfer modules", job):
        found = judge.pool.json(job)
        judge.add(
            "attention", "FlashInfer modules", "right", f"{len(found['modules'])} built in {found['seconds']:.0f} s"
        )


def dense(judge: Judge) -> None:
    """Section 1."""
    section = "dense"
    if judge.missing(section, "quantizer, Marlin", "dense"):
        return
    found = judge.pool.json("dense")
    quantizer = found.get("quantizer", {"error": "did not run"})
    if "error" in quantizer:
        judge.add(section, "quantizer", "wrong", quantizer["error"])
    else:
        for name, one in quantizer.items():
            wrong = sum(value for key, value in one.items() if key != "elements")
            judge.add(
                section, f"quantizer, {name}", verdict(not wrong), f"{wrong} wrong in {one['elements']} elements", **one
            )
    products(judge, section, found.get("layers", {"error": "did not run"}), decode=False)


def products(judge: Judge, section: str, layers: dict, *, decode: bool, label: str = "Marlin") -> None:
    """Layers of one run of dense.py."""
    if "error" in layers:
        judge.add(section, f"{label}, layers", "wrong", layers["error"])
        return
    for name, runs in layers.items():
        by_m = {int(m): one for m, one in runs.items() if m.isdigit()}
        worst = max(one["of the bound"] for one in by_m.values())
        relative = max(one["relative"] for one in by_m.values())
        right = [one["finite"] and one["graph equals eager"] and one["runs equal"] for one in by_m.values()]
        kernels = [one["kernel"] == ("decode" if decode and m <= 8 else "Marlin") for m, one in by_m.items()]
        said = f"{worst:.3f} of the bound, relative {relative:.5f}, M {','.join(map(str, by_m))}"
        if not all(right):
            said += ", NOT EQUAL in a second run or in a graph"
        if not all(kernels):
            said += ", ANOTHER KERNEL than expected"
        good = verdict(worst <= 1, *right, *kernels, math.isfinite(relative))
        judge.add(section, f"{label}, {name}", good, said, worst=worst, relative=relative, by_tokens=runs)


def kernels(judge: Judge, section: str, name: str, job: str, base: str | None) -> None:
    """Counters of the stand-in packages: who was called at how many tokens is asserted there; here, that they ran."""
    if judge.missing(section, name, job):
        return
    found = judge.pool.json(job)
    step = found.get("main", {})
    ran = {key[4:]: value for key, value in step.items() if key.startswith("ran ")}
    called = {key[7:]: value for key, value in step.items() if key.startswith("called ")}
    conditions = [bool(ran), all(value > 0 for value in ran.values())]
    said = f"on the device {ran}, by Python {called}"
    if base is not None and (other := judge.pool.json(base)):
        eager = {key[4:]: value for key, value in other.get("main", {}).items() if key.startswith("ran ")}
        conditions += [eager == ran, any(called[key] < ran[key] for key in ran)]
        said += f", eager {eager}"
    judge.add(section, name, verdict(*conditions), said, ran=ran, called=called)


def as_json(checks: list[Check]) -> list[dict]:
    """For the file."""
    return [asdict(check) for check in checks]
