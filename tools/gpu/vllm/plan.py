"""Which engines run with what: names, arguments, prompts.

A name says backend, then what is special: T TRITON_ATTN, F FlashInfer; fp8 the KV cache; ngram speculation; eager,
full (graphs for decode alone, nothing compiled), compiled (no graphs), default (compiled, full and piecewise graphs);
K with decode kernels; Q FlashInfer with decode by XQA; X the fitted model (sharp.py), captured up to 512 tokens, so that
prefill beside decode is replayed in pieces; S a soak; C a soak under the recorder. All of them hold every layer in MXFP4,
so that one BF16 twin judges all of them.
"""

from __future__ import annotations

import json
import random
import time
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
    "full": {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": SIZES}},
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
# As vLLM's own steps, up to batches that hold a prefill; all are multiples of four but two that n-gram leaves out.
WIDE_SIZES = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]
# Faults that no layer can do without, and smaller ones, which may hide below the margin in a layer (faults.py).
LARGE_FAULTS = ("attention closed by its sinks", "every expert another's", "qkv shifted", "o shifted")
SMALL_FAULTS = ("sinks gone", "sinks of another head", "two experts exchanged")
OPTIONS = ("T", "F", "Q", "K", "X", "S", "C", "fake", "real", "fp8", "ngram", "moetriton", "faults", *MODES)


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
        # Replies that a fitted lm_head says; drawn last, so that what stands above stays what it was.
        self.replies = {
            "main": [self._reply(chance, ids, 128, repeats=True) for _ in self.main],
            "mixed": [self._reply(chance, ids, tokens, repeats=tokens > 30) for tokens in self.mixed_tokens],
            "catalogue": [
                self._reply(chance, ids, tokens, repeats=chance.random() < 0.5) for tokens in self.catalogue_tokens
            ],
        }
        self.chats: list[dict] = []
        self._chance, self._ids = chance, ids

    def with_chats(self, vocab: int) -> Prompts:
        """Also the chats, whose prompts a tokenizer makes."""
        import chats

        prompts = chats.ids(vocab)
        replies = [self._reply(self._chance, self._ids, 48, repeats=number % 2 == 0) for number in range(len(prompts))]
        self.chats = [
            {"text": text, "prompt": prompt, "reply": reply}
            for text, prompt, reply in zip(chats.TEXTS, prompts, replies, strict=True)
        ]
        return self

    @staticmethod
    def _reply(chance: random.Random, ids: range, length: int, *, repeats: bool) -> list[int]:
        """Tokens at random; one that repeats itself is a phrase of different tokens over and over, as n-grams like it."""
        if not repeats:
            return chance.choices(ids, k=length)
        phrase = chance.sample(ids, max(4, min(12, length // 3)))
        return (phrase * length)[:length]

    def sharp(self, *steps: str) -> list[dict]:
        """Prompts with the replies that the fitted model must give, of the steps named or of all."""
        prompts = {"main": self.main, "mixed": self.mixed, "catalogue": self.catalogue}
        return [
            {"prompt": prompt, "reply": reply}
            for step in steps or prompts
            for prompt, reply in zip(prompts[step], self.replies[step], strict=True)
        ] + ([] if steps else [{"prompt": one["prompt"], "reply": one["reply"]} for one in self.chats])


def by_flashinfer(name: str) -> bool:
    """Whether an engine of this name attends by FlashInfer; then FA2 with sinks does its prefill."""
    return bool({"F", "Q"} & set(name.split(".")))


def arguments(name: str, *, moe: str = "marlin", layers: str = "all") -> dict:
    """Arguments of vllm.LLM that a name means."""
    words = name.split(".")
    if unknown := [word for word in words if word not in OPTIONS]:
        raise ValueError(f"{name}: {unknown} mean nothing")
    mode = MODES[words[-1]]
    llm = {**BASE, **mode, "moe_backend": "triton" if "moetriton" in words else moe, "mxfp4_layers": layers}
    llm["attention_config"] = {"backend": BACKENDS["F" if by_flashinfer(name) else "T"]}
    if "X" in words and words[-1] == "default":
        llm["compilation_config"] = {"cudagraph_capture_sizes": WIDE_SIZES}
        llm["enable_prefix_caching"] = "S" in words  # as the profiles have it: hits change what is computed at once
    if "fp8" in words:
        llm["kv_cache_dtype"] = "fp8"
    if "ngram" in words:
        llm["speculative_config"] = NGRAM
        if "cudagraph_capture_sizes" in mode.get("compilation_config", {}):
            sizes = WIDE_SIZES[2:] if "X" in words and words[-1] == "default" else NGRAM_SIZES
            llm["compilation_config"] = mode["compilation_config"] | {"cudagraph_capture_sizes": sizes}
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
        modules = ("jit",) * by_flashinfer(name) + ("jit.xqa",) * ("Q" in name.split("."))
        return (self.made, *modules)

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

    def hidden(self, name: str) -> Job:
        """What an engine makes of every prompt and wanted reply, for the fit; on the random model."""
        step = {"do": "hidden", "key": "hidden", "sequences": self.prompts.sharp()}
        job = {"model": str(self.model / "mxfp4"), "llm": arguments(name), "steps": [step]}
        return self._engine(f"hidden.{name}", job, name.split("."))

    def known(self, name: str, *, tops: bool = True, planted: bool = False) -> Job:
        """An engine of the fitted model: it answers, says the two likeliest tokens' logits, takes faults."""
        special = self.prompts
        lengths = [len(reply) for reply in special.replies["mixed"]]
        steps: list[dict] = [
            {"do": "generate", "key": "main", "prompts": special.main, "tokens": 128, "tops": 2 if tops else None},
            {
                "do": "generate",
                "key": "mixed",
                "prompts": special.mixed,
                "tokens": lengths,
                "tops": 2 if tops else None,
            },
        ]
        if planted:
            both = {"prompts": special.main + special.mixed, "tokens": [128] * len(special.main) + lengths}
            steps.append({"do": "faults", "key": "planted", **both})
        job = {"model": str(self.model / "mxfp4"), "llm": arguments(name), "steps": steps}
        return self._engine(name, job, name.split("."))

    def soaking(
        self, name: str, seconds: float, number: int, *, beside: int = 0, least: dict[str, int] | None = None
    ) -> Job:
        """The fitted model under requests that come and go; with `beside`, under the recorder too.

        With `least`, replays and changes of the batch, it ends when it has had as many.
        """

        def job() -> dict | None:
            lasts = min(seconds, self.pool.left() - (60 if beside else 25))  # it loads before
            if lasts < 10:
                return None
            until = time.time() + self.pool.left() - (35 if beside else 8)  # however long it loads
            catalogue = [one | {"tokens": len(one["reply"])} for one in self.prompts.sharp("catalogue")]
            step = {"do": "soak", "key": "soak", "catalogue": catalogue, "seconds": lasts, "seed": SEED + number}
            step |= {"until": until, "least": least or {}}
            if "ngram" in name.split("."):  # a whole graph takes a batch in which every request has its drafts
                step["at_once"] = (1, 1, 1, 2, 2, 3, 4, 8, 16)
            if beside:
                step |= {"do": "recorded", "key": "recorded", "beside": beside}
            llm = arguments(name)
            return {"model": str(self.model / "mxfp4"), "llm": llm, "steps": [step], "record": bool(beside)}

        found = self._engine(name, job, name.split("."))
        found.limit = seconds + 240
        return found

    def serving(self, name: str, flags: list[str], site: Path, here: Path, *, gpus: int = 1) -> Job:
        """The fitted model behind the server; on several GPUs, on the first ones."""
        job = {
            "model": str(self.model / "mxfp4"), "flags": flags, "chats": self.prompts.chats, "seconds": 200,
            "prompts": self.prompts.sharp("main", "mixed"), "out": str(self.pool.folder / name),
        }  # fmt: skip
        path = self.pool.folder / f"{name}.job.json"

        def words() -> list[str]:
            path.write_text(json.dumps(job))
            return [str(path)]

        env = {"PYTHONPATH": str(site), "SPARKFORGE_GPU_TESTS": str(here)}
        if gpus > 1:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(str(one) for one in range(gpus))
        return Job(name, "server.py", words, needs=(self.made, "jit"), env=env, limit=320)

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
        extra: dict = {"open_gate": by_flashinfer(".".join(words)), "counters": None}
        if "Q" in words:
            env["VLLM_FLASHINFER_XQA_DECODE"] = "1"
        for kind in ("fake", "real"):
            if kind in words:
                env["PYTHONPATH"] = str(self.sites[kind])
                extra["counters"] = f"gpu_{kind}_kernels"

        def arguments_of() -> list[str] | None:
            made = job() if callable(job) else job
            return None if made is None else self._words(name, made | extra)

        return Job(name, "engine.py", arguments_of, after=after, needs=self._needs(name), env=env)
