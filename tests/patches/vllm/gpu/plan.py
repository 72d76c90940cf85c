"""Which engines run with what: names, arguments, prompts.

A name says backend, then what is special: T TRITON_ATTN, F FlashInfer; fp8 the KV cache; ngram speculation; eager,
full (graphs for decode alone, nothing compiled), compiled (no graphs), default (compiled, full and piecewise graphs);
K with decode kernels; S a soak. All of them hold every layer in MXFP4, so that one BF16 twin judges all of them.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from pool import Job, Pool

SEED = 11
SIZES = [1, 2, 4, 8, 16]
BASE = {
    "skip_tokenizer_init": True,
    "dtype": "bfloat16",
    "max_model_len": 1024,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 2048,
    "gpu_memory_utilization": 0.05,
    "distributed_executor_backend": "uni",  # in this process, where the watchers are
    "kv_cache_memory_bytes": 1 << 30,  # fixed: engines beside each other would measure each other's memory
    "enable_prefix_caching": False,
    "logprobs_mode": "raw_logits",
    "enable_flashinfer_autotune": False,  # would compile modules that nothing here runs
    "seed": 0,
}
MODES = {
    "eager": {"enforce_eager": True},
    "full": {
        "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": SIZES}
    },
    "compiled": {"compilation_config": {"cudagraph_mode": "NONE"}},
    "default": {"compilation_config": {"cudagraph_capture_sizes": SIZES}},
}
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,  # any token seen before: a random model seldom repeats two
}
# The same sizes in tokens: a verified request has four.
NGRAM_SIZES = [4, 8, 16, 32, 64]
BACKENDS = {"T": "TRITON_ATTN", "F": "FLASHINFER"}
OPTIONS = ("T", "F", "K", "S", "fake", "real", "fp8", "ngram", "moetriton", *MODES)


class Prompts:
    """Token ids from a seed; some repeat themselves, which is what n-gram speculation lives on."""

    def __init__(self, vocab: int):
        chance = random.Random(SEED)
        ids = range(3, vocab - 8)

        def some(length: int) -> list[int]:
            if chance.random() < 0.5:
                phrase = chance.choices(ids, k=max(4, length // 6))
                return (phrase * 7)[:length]
            return chance.choices(ids, k=length)

        self.main = [some(length) for length in (33, 100, 170, 250)]
        self.mixed = [some(chance.randint(3, 200)) for _ in range(12)]
        self.mixed_tokens = [chance.randint(6, 60) for _ in range(12)]
        self.probe = [{"prompt": one[:1], "reply": one[1:]} for one in (some(300), chance.choices(ids, k=300))]
        self.catalogue = [some(chance.randint(2, 220)) for _ in range(48)]
        self.catalogue_tokens = [chance.randint(3, 32) for _ in range(48)]


def arguments(name: str, *, moe: str = "marlin", layers: str = "all") -> dict:
    """Arguments of vllm.LLM that a name means."""
    words = name.split(".")
    if unknown := [word for word in words if word not in OPTIONS]:
        raise ValueError(f"{name}: {unknown} mean nothing")
    mode = MODES[words[-1]]
    llm = {**BASE, **mode, "moe_backend": "triton" if "moetriton" in words else moe, "mxfp4_layers": layers}
    llm["attention_config"] = {"backend": BACKENDS["F" if "F" in words else "T"]}
    if "fp8" in words:
        llm["kv_cache_dtype"] = "fp8"
    if "ngram" in words:
        llm["speculative_config"] = NGRAM
        if "cudagraph_capture_sizes" in mode.get("compilation_config", {}):
            llm["compilation_config"] = mode["compilation_config"] | {"cudagraph_capture_sizes": NGRAM_SIZES}
    return llm


def twin_arguments() -> dict:
    """The BF16 reference: Triton for experts and attention, eager."""
    return arguments("T.eager", moe="triton", layers="moe")


class Engines:
    """Makes the jobs that run engines on one checkpoint."""

    def __init__(self, pool: Pool, model: Path, prompts: Prompts, sites: dict[str, Path], *, made: str):
        self.pool, self.model, self.prompts, self.sites, self.made = pool, model, prompts, sites, made

    def _words(self, name: str, job: dict) -> list[str]:
        path = self.pool.folder / f"{name}.job.json"
        path.write_text(json.dumps({**job, "out": str(self.pool.folder / name)}))
        return [str(path)]

    def _needs(self, name: str) -> tuple[str, ...]:
        return (self.made, "jit") if "F" in name.split(".") else (self.made,)

    def answering(self, name: str, *, probe: bool = False, catalogue: bool = False, prefix: str = "", **more) -> Job:
        """An engine that answers the prompts, and scores the probe where two engines' logits are compared."""
        special, words = self.prompts, name.split(".")
        tops = 8 if probe else None
        steps: list[dict] = [
            {"do": "generate", "key": "main", "prompts": special.main, "tokens": 128, "tops": tops},
            {"do": "generate", "key": "mixed", "prompts": special.mixed, "tokens": special.mixed_tokens},
        ]
        if probe:
            steps.append({"do": "score", "key": "probe", "sequences": special.probe, "keep": True})
        if catalogue:
            steps.append(
                {
                    "do": "generate",
                    "key": "catalogue",
                    "prompts": special.catalogue,
                    "tokens": special.catalogue_tokens,
                }
            )
        job = {"model": str(self.model / "mxfp4"), "llm": arguments(name) | more, "steps": steps}
        return self._engine(prefix + name, job, words)

    def soaking(self, name: str, seconds: float, catalogue_of: str, number: int) -> Job:
        """An engine under requests that come and go; it compares with the replies of another engine."""
        words = name.split(".")

        def job() -> dict | None:
            found = self.pool.json(catalogue_of)
            lasts = min(seconds, self.pool.left() - 110)  # it loads before, and is judged after
            if not found or "catalogue" not in found or lasts < 10:
                return None
            special = self.prompts
            catalogue = [
                {"prompt": prompt, "tokens": tokens, "reply": reply}
                for prompt, tokens, reply in zip(
                    special.catalogue, special.catalogue_tokens, found["catalogue"]["replies"], strict=True
                )
            ]
            step = {"do": "soak", "key": "soak", "catalogue": catalogue, "seconds": lasts, "seed": SEED + number}
            return {"model": str(self.model / "mxfp4"), "llm": arguments(name), "steps": [step]}

        found = self._engine(name, job, words, after=(catalogue_of,))
        found.limit = seconds + 200
        return found

    def judging(self, name: str, sequences, *, after: tuple[str, ...], own: bool, **more) -> Job:
        """The BF16 twin, which scores what the others said, and with `own` what it says itself."""
        special = self.prompts

        def job() -> dict | None:
            found = sequences()
            steps: list[dict] = []
            if own:
                steps += [
                    {"do": "score", "key": "probe", "sequences": special.probe, "keep": True},
                    {"do": "generate", "key": "main", "prompts": special.main, "tokens": 128, "tops": None},
                    {"do": "score", "key": "own", "of": "main"},
                ]
            if found:
                steps.append({"do": "score", "key": "judged", "sequences": found})
            if not steps:
                return None
            return {"model": str(self.model / "twin"), "llm": twin_arguments() | more, "steps": steps}

        return self._engine(name, job, [], after=after)

    def _engine(self, name: str, job, words: list[str], after: tuple[str, ...] = ()) -> Job:
        env = {}
        extra: dict = {"open_gate": "F" in words, "counters": None}
        for kind in ("fake", "real"):
            if kind in words:
                env["PYTHONPATH"] = str(self.sites[kind])
                extra["counters"] = f"gpu_{kind}_kernels"

        def arguments_of() -> list[str] | None:
            made = job() if callable(job) else job
            return None if made is None else self._words(name, made | extra)

        return Job(name, "engine.py", arguments_of, after=after, needs=self._needs(name), env=env)
