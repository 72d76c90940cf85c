"""Requests that come and go at random, for so many seconds: prefill beside decode, batches that change at each step."""

from __future__ import annotations

import math
import random
import time
from collections import Counter

import watch

# Requests at once. The more, the oftener one begins beside others, which is replayed in pieces: several graphs a step.
AT_ONCE = (1, 2, 3, 4, 6, 8, 12, 16, 16, 16)


def soak(llm, step: dict, arrays: dict) -> dict:  # every step of an engine is called alike
    """Answer requests of the catalogue until the time is over; each reply is compared with the one in it.

    step: "catalogue", "seconds", "seed", and if given "until", a time of day at which it ends however long it has run,
    "least", of each count as many (of "replays" those that `watch.soaked` names): where it has had all of them it ends
    before its time, and "at_once", numbers of requests at once to choose from.

    A reply that differs is kept, once for each text, to be judged by its regret: another batch is another order of
    additions, and a near tie may fall otherwise.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    catalogue, chance = step["catalogue"], random.Random(step["seed"])
    prompts = llm._preprocess_cmpl([{"prompt_token_ids": one["prompt"]} for one in catalogue])
    plain = {"temperature": 0.0, "ignore_eos": True, "detokenize": False, "output_kind": RequestOutputKind.FINAL_ONLY}
    params = [SamplingParams(max_tokens=one["tokens"], **plain) for one in catalogue]
    engine = llm.llm_engine
    asked: dict[str, int] = {}
    equal = differing = 0
    kept: dict[tuple, dict] = {}
    before = watch.counts()
    least = {watch.soaked(llm) if name == "replays" else name: count for name, count in step.get("least", {}).items()}
    begun = time.monotonic()
    ends = begun + min(step["seconds"], step.get("until", math.inf) - time.time())
    number, over = 0, False
    failed = None
    wanted = 8
    try:
        while True:
            over = over or time.monotonic() > ends or _has(least, before)
            if over and not asked:
                break
            if chance.random() < 0.02:
                wanted = chance.choice(step.get("at_once", AT_ONCE))
            if not over and len(asked) < wanted:
                which = chance.randrange(len(catalogue))
                number += 1
                name = f"soak-{number}"
                # Rendered once: a request costs little, so that the device is what is busy.
                engine.add_request(name, dict(prompts[which]), params[which].clone())
                asked[name] = which
            for output in engine.step():
                if not output.finished:
                    continue
                which = asked.pop(output.request_id)
                reply = list(output.outputs[0].token_ids)
                if reply == catalogue[which]["reply"]:
                    equal += 1
                else:
                    differing += 1
                    if len(kept) < 48:
                        kept.setdefault((which, tuple(reply)), {"prompt": catalogue[which]["prompt"], "reply": reply})
    except Exception as error:  # the counts up to here are the result that matters most then
        failed = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - begun
    return {
        "seconds": seconds,
        "requests": number,
        "equal": equal,
        "differing": differing,
        "kept": list(kept.values()),
        "failed": failed,
        **watch.since(before),
    }


def _has(least: dict[str, int], before: Counter) -> bool:
    """Whether everything has been counted so often; never where nothing is asked for."""
    return bool(least) and all(watch.COUNTS[name] - before[name] >= count for name, count in least.items())
