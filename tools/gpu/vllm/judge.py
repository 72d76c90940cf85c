"""What the engines' answers mean: the numbers of each check, and what is demanded of them (rules.py).

Logits and regrets are compared on models of random weights (checkpoint.py): an engine with every layer in MXFP4 against
its BF16 twin, which holds the same numbers dequantized.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field

import numpy as np
import rules
from pool import Pool

# Key of a number, comparison, limit: a number, or a name in rules.LIMITS.
Demand = tuple[str, str, object]
# Names of the limits of the largest regret and of the mean.
PLAIN = ("regret", "mean regret")
WIDE = ("regret, wide", "mean regret, wide")
FP8 = ("regret, FP8 KV", "mean regret, FP8 KV")
FP8_QUERIES = ("regret, FP8 KV", "mean regret, FP8 KV and queries")


@dataclass
class Check:
    """One line of the table.

    Attributes:
        state: "judged", "not run" (with the reason in `said`) or "told" (nothing is to be judged).
        numbers: what was measured.
        demands: what is demanded of the numbers; all must hold.
    """

    section: str
    name: str
    state: str
    said: str
    numbers: dict = field(default_factory=dict)
    demands: list[Demand] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """ "right", "wrong", "not run" or "told"."""
        return rules.verdict(asdict(self))

    def line(self) -> str:
        """For people."""
        return f"{self.section:14} {self.name:34} {self.verdict:8} {self.said}"[:150]


class Judge:
    """Checks of one model's engines."""

    def __init__(self, pool: Pool):
        self.pool = pool
        self.checks: list[Check] = []
        self.scored: dict[str, dict] = {}

    def missing(self, section: str, name: str, *jobs: str) -> bool:
        """Whether a job that the check needs wrote nothing; then a line says why."""
        for job in jobs:
            ended = self.pool.ended.get(job)
            if self.pool.json(job) is not None and ended and ended.state == "done":
                continue
            if ended and ended.state != "skipped":
                said = f"{job} {ended.state}: {ended.last[-1] if ended.last else ''}"
                self.add(section, name, said, ("ended well", "==", True), **{"ended well": False})
            else:
                self.skip(section, name, f"{job} was {'skipped' if ended else 'not asked for'}")
            return True
        return False

    def add(self, section: str, name: str, said: str, *demands: Demand, **numbers) -> None:
        """One more line, judged by its demands."""
        self.checks.append(Check(section, name, "judged", said, numbers, list(demands)))

    def skip(self, section: str, name: str, why: str) -> None:
        """A check that could not be made."""
        self.checks.append(Check(section, name, "not run", why))

    def tell(self, section: str, name: str, said: str, **numbers) -> None:
        """Numbers of which nothing is demanded."""
        self.checks.append(Check(section, name, "told", said, numbers))

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

    def logits(self, section: str, name: str, one: str, other: str, limit: str) -> None:
        """Every logit of the probe, one engine against another, both in one prefill; `limit` names one of the rules."""
        if self.missing(section, name, one, other):
            return
        mine, theirs = self.pool.arrays(one), self.pool.arrays(other)
        keys = sorted(key for key in mine if key.startswith("probe.") and key.endswith(".logits"))
        if not keys or any(key not in theirs for key in keys):
            self.add(section, name, "no probe", ("logits", ">", 0), logits=0)
            return
        a, b = (np.concatenate([arrays[key] for key in keys]).astype(np.float64) for arrays in (mine, theirs))
        spread = b.std(axis=1, keepdims=True)
        more = {
            "mean spread": float(spread.mean()),
            "places": int(a.shape[0]),
            "same choice": float((a.argmax(axis=1) == b.argmax(axis=1)).mean()),
        }
        self._off(section, name, (a - b) / spread, limit, **more)

    def decode_logits(self, section: str, name: str, job: str, prompts: list[list[int]], limit: str) -> None:
        """Logits of the likeliest tokens at each decode step against the twin's prefill of the same text."""
        if self.missing(section, name, job):
            return
        arrays, off = self.pool.arrays(job), []
        for number, (prompt, reply) in enumerate(zip(prompts, self.replies(job, "main"), strict=True)):
            judged = self.scored.get(job + self.name(prompt, reply))
            logits = arrays.get(f"main.{number}.logits")
            if judged is None or logits is None or judged["at_top_ids"] is None:
                self.skip(section, name, "not scored")
                return
            off.append((logits - judged["at_top_ids"]) / judged["spread"][:, None])
        self._off(section, name, np.concatenate(off).astype(np.float64), limit)

    def _off(self, section: str, name: str, off: np.ndarray, limit: str, **more) -> None:
        rms, most = float(np.sqrt((off**2).mean())), float(np.abs(off).max())
        said = f"rms {rms:.4f} (limit {rules.LIMITS[limit]}), largest {most:.3f} spreads, {off.size} logits"
        self.add(
            section, name, said, ("finite", "==", True), ("rms", "<=", limit), ("logits", ">", 0),
            finite=bool(np.isfinite(off).all()), rms=rms, largest=most, logits=int(off.size), **more,
        )  # fmt: skip

    def regrets_of(self, section: str, name: str, job: str, pairs, limits: tuple[str, str] = PLAIN) -> None:
        """Regret, by the twin, of what an engine said on random weights."""
        if self.missing(section, name, job):
            return
        found = self.regret(pairs)
        if found is None:
            self.skip(section, name, "not scored")
            return
        said = f"{_of_regret(found, limits)}, {found['others']} of {found['places']} differ"
        self.add(section, name, said, *_regretted(limits), **found)

    def own(self, section: str, name: str, job: str) -> None:
        """The floor: what the twin's decode says, by the twin's own prefill."""
        if self.missing(section, name, job):
            return
        arrays = self.pool.arrays(job)
        keys = sorted(key[: -len(".regret")] for key in arrays if key.startswith("own.") and key.endswith(".regret"))
        if not keys:
            self.skip(section, name, "not scored")
            return
        regret = np.concatenate([arrays[f"{key}.regret"] / arrays[f"{key}.spread"] for key in keys])
        said = (
            f"largest {regret.max():.3f}, mean {regret.mean():.5f} spreads, {int((regret > 0).sum())} of {regret.size}"
        )
        self.tell(section, name, said, largest=float(regret.max()), mean=float(regret.mean()))

    def tokens(self, section: str, name: str, job: str, base: str, prompts, more: str = "") -> None:
        """Token for token against another engine, on random weights; where they differ, only as rounding does.

        A random model has near-ties: one token that falls otherwise changes all after it. So a reply that differs is
        judged by its regret: largest and mean must be those of rounding. Every fault of tolerances.json is above one of them.
        """
        if self.missing(section, name, job, base):
            return
        mine, theirs = self.replies(job, "main", "mixed"), self.replies(base, "main", "mixed")
        equal = sum(a == b for a, b in zip(mine, theirs, strict=True))
        first = [
            next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), -1)
            for a, b in zip(mine, theirs, strict=True)
        ]
        facts = self.pool.json(job) or {}
        sums = {key: sum(facts.get(step, {}).get(key, 0) for step in ("main", "mixed"))
                for key in ("replays", "replays FULL", "uniform", "drafted")}  # fmt: skip
        numbers = {
            "replies": len(mine),
            "equal": equal,
            "tokens": sum(len(reply) for reply in mine),
            "tokens before a difference": sum(
                len(reply) if at < 0 else at for reply, at in zip(mine, first, strict=True)
            ),
            **sums,
        }
        drafted = f", {sums['drafted']} drafted" if sums["drafted"] else ""
        said = f"{equal} of {len(mine)} replies equal {base}'s, {sums['replays']} replays{drafted}{more}"
        demands: list[Demand] = [("replies", ">", 0)]
        if equal < len(mine):
            found = self.regret([(p, r) for p, r in zip(prompts, mine, strict=True)])
            numbers |= found or {}
            demands += _regretted(PLAIN)
            said += f", near ties: {_of_regret(found, PLAIN)}" if found else ", differing ones not scored"
        if any(word in job for word in ("full", "default")):
            mode = str(facts.get("graphs", ""))
            # A whole graph is for decode of as many tokens by each request, one and its drafts. Where n-gram finds no
            # draft for one of them the batch is not uniform, and without pieces nothing is there to be replayed.
            if "FULL" in mode:
                demands.append(("replays FULL", "==", sums["uniform"]))
            if sums["uniform"] or "PIECEWISE" in mode:
                demands.append(("replays", ">", 0))
        self.add(section, name, said, *demands, **numbers)


def _regretted(limits: tuple[str, str]) -> list[Demand]:
    return [("finite", "==", True), ("largest", "<=", limits[0]), ("mean", "<=", limits[1])]


def _of_regret(found: dict, limits: tuple[str, str]) -> str:
    most, mean = (rules.LIMITS[limit] for limit in limits)
    return f"regret at most {found['largest']:.3f} (limit {most}), mean {found['mean']:.5f} (limit {mean}) spreads"


def built(judge: Judge, job: str) -> None:
    """FlashInfer's modules with sinks; without them its engines are not run."""
    if not judge.missing("attention", "FlashInfer modules", job):
        found = judge.pool.json(job)
        said = f"{len(found['modules'])} built in {found['seconds']:.0f} s"
        judge.add("attention", "FlashInfer modules", said, ("modules", ">", 0), modules=len(found["modules"]))


def dense(judge: Judge) -> None:
    """Section 1."""
    section = "dense"
    if judge.missing(section, "quantizer, Marlin", "dense"):
        return
    found = judge.pool.json("dense")
    quantizer = found.get("quantizer", {"error": "did not run"})
    if "error" in quantizer:
        judge.add(section, "quantizer", quantizer["error"], ("elements", ">", 0), elements=0)
    else:
        for name, one in quantizer.items():
            wrong = sum(value for key, value in one.items() if key != "elements")
            demands = (("wrong in all", "==", 0), ("elements", ">", 0))
            said = f"{wrong} wrong in {one['elements']} elements"
            judge.add(section, f"quantizer, {name}", said, *demands, **one, **{"wrong in all": wrong})
    products(judge, section, found.get("layers", {"error": "did not run"}), decode=False)


def products(judge: Judge, section: str, layers: dict, *, decode: bool, label: str = "Marlin") -> None:
    """Layers of one run of dense.py, against float64."""
    if "error" in layers:
        judge.add(section, f"{label}, layers", layers["error"], ("layers", ">", 0), layers=0)
        return
    for name, runs in layers.items():
        by_m = {int(m): one for m, one in runs.items() if m.isdigit()}
        worst = max(one["of the bound"] for one in by_m.values())
        relative = max(one["relative"] for one in by_m.values())
        repeat = all(one["graph equals eager"] and one["runs equal"] for one in by_m.values())
        kernels = all(one["kernel"] == ("decode" if decode and m <= 8 else "Marlin") for m, one in by_m.items())
        finite = all(one["finite"] for one in by_m.values()) and math.isfinite(relative)
        said = f"{worst:.3f} of the bound, relative {relative:.5f}, M {','.join(map(str, by_m))}"
        if not repeat:
            said += ", NOT EQUAL in a second run or in a graph"
        if not kernels:
            said += ", ANOTHER KERNEL than expected"
        judge.add(
            section, f"{label}, {name}", said, ("worst", "<=", 1), ("finite", "==", True), ("repeat", "==", True),
            ("kernels as expected", "==", True), worst=worst, relative=relative, finite=finite, repeat=repeat,
            by_tokens=runs, **{"kernels as expected": kernels},
        )  # fmt: skip


def kernels(judge: Judge, section: str, name: str, job: str, base: str | None) -> None:
    """Counters of the stand-in packages: who was called at how many tokens is asserted there; here, that they ran."""
    if judge.missing(section, name, job):
        return
    found = judge.pool.json(job)
    step = found.get("main", {})
    ran = {key[4:]: value for key, value in step.items() if key.startswith("ran ")}
    called = {key[7:]: value for key, value in step.items() if key.startswith("called ")}
    demands: list[Demand] = [("least runs", ">", 0)]
    said = f"on the device {ran}, by Python {called}"
    if base is not None and (other := judge.pool.json(base)):
        eager = {key[4:]: value for key, value in other.get("main", {}).items() if key.startswith("ran ")}
        demands += [("ran", "==", eager), ("replayed", "==", True)]
        said += f", eager {eager}"
    replayed = any(called[key] < ran[key] for key in ran)
    least = min(ran.values(), default=0)
    judge.add(section, name, said, *demands, ran=ran, called=called, replayed=replayed, **{"least runs": least})


def as_json(checks: list[Check]) -> list[dict]:
    """For the file."""
    return [asdict(check) for check in checks]
