"""One engine in a process of its own: it answers, scores, and counts what it did.

    python engine.py JOB.json

JOB: {"model", "llm": arguments of vllm.LLM, "out": stem of the results, "open_gate": whether FlashInfer's sinks are
let through on this device, "counters": module with the fake kernels' counters or null, "steps": [...]}. A step is
  {"do": "generate", "key", "prompts": [[ids]], "tokens": n or [n], "tops": k or null}
  {"do": "score", "key", "sequences": [{"prompt", "reply", "top_ids"?}] or "of": a step, "keep": all logits or not}
  {"do": "soak", "key", "catalogue": [{"prompt", "tokens", "reply"}], "seconds", "seed"}
  {"do": "hidden", "key", "sequences": [{"prompt", "reply"}]}     what logits are computed from, at each reply's places
  {"do": "faults", "key", "prompts", "tokens"}                    replies and leads with a fault in one part of one layer
  {"do": "recorded", ...a soak's, "beside"}                       a soak whose every replay is compared (record.py)
With "record" every graph is kept readable. OUT.json takes what is small, OUT.npz the arrays. Logits are read where the model hands them over, in this process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import bound
import faults
import numpy as np
import recorded
import soak
import torch
import watch


def params(tokens: int, **more):
    """Greedy, and no token ends the reply."""
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False, **more)


def generate(llm, step: dict, arrays: dict) -> dict:
    """Replies to all prompts at once; with tops, the raw logits of the likeliest tokens of each place."""
    prompts = [{"prompt_token_ids": ids} for ids in step["prompts"]]
    tokens = step["tokens"] if isinstance(step["tokens"], list) else [step["tokens"]] * len(prompts)
    tops = step.get("tops")
    more = {} if tops is None else {"logprobs": tops}
    before = watch.counts()
    begun = time.monotonic()
    answers = llm.generate(prompts, [params(n, **more) for n in tokens], use_tqdm=False)
    seconds = time.monotonic() - begun
    done = watch.since(before)
    replies = [list(answer.outputs[0].token_ids) for answer in answers]
    if tops is not None:
        for number, answer in enumerate(answers):
            places = [
                sorted(place.items(), key=lambda one: -one[1].logprob)[:tops] for place in answer.outputs[0].logprobs
            ]
            arrays[f"{step['key']}.{number}.ids"] = np.array([[token for token, _ in place] for place in places])
            arrays[f"{step['key']}.{number}.logits"] = np.array(
                [[value.logprob for _, value in place] for place in places], dtype=np.float32
            )
    return {"replies": replies, "seconds": seconds, **done}


def score(llm, step: dict, arrays: dict) -> dict:
    """What one prefill says of each place of a reply: regret, the spread of its logits, the reply's logits.

    regret: the best logit less the reply's token's. Place i is judged on the prompt and the reply before i.
    """
    logged = []
    for number, sequence in enumerate(step["sequences"]):
        prompt, reply = sequence["prompt"], sequence["reply"]
        whole = prompt + reply
        with watch.logits() as seen:
            llm.generate([{"prompt_token_ids": whole}], params(1, prompt_logprobs=0), use_tqdm=False)
        found = [rows for rows in seen if rows.shape[0] == len(whole) - 1]
        if len(found) != 1:
            raise RuntimeError(f"logits of {[tuple(rows.shape) for rows in seen]} seen, none of {len(whole) - 1} rows")
        rows = found[0][len(prompt) - 1 :].float()
        said = rows.gather(1, torch.tensor(reply, device=rows.device).unsqueeze(1)).squeeze(1)
        regret = rows.max(dim=1).values - said
        key = f"{step['key']}.{number}"
        arrays[f"{key}.regret"] = regret.cpu().numpy()
        arrays[f"{key}.spread"] = rows.std(dim=1).cpu().numpy()
        if step.get("keep"):
            arrays[f"{key}.logits"] = rows.cpu().numpy()
        if (ids := sequence.get("top_ids")) is not None:
            at = torch.tensor(ids, device=rows.device)
            arrays[f"{key}.at_top_ids"] = rows.gather(1, at).cpu().numpy()
        logged.append({"places": len(reply), "finite": bool(torch.isfinite(rows).all())})
    return {"scored": logged}


def hidden(llm, step: dict, arrays: dict) -> dict:
    """What the layers make of each prompt and reply, in one prefill: rows from which the reply's tokens are chosen."""
    rows = []
    for sequence in step["sequences"]:
        whole = sequence["prompt"] + sequence["reply"]
        with watch.hidden() as seen:
            llm.generate([{"prompt_token_ids": whole}], params(1, prompt_logprobs=0), use_tqdm=False)
        found = [one for one in seen if one.shape[0] == len(whole) - 1]
        if len(found) != 1:
            raise RuntimeError(f"{[tuple(one.shape) for one in seen]} seen, none of {len(whole) - 1} rows")
        rows.append(found[0][len(sequence["prompt"]) - 1 :].cpu())
    arrays[step["key"]] = torch.cat(rows).numpy()
    return {"places": len(arrays[step["key"]])}


def planted(llm, step: dict, arrays: dict) -> dict:
    """Replies and the two likeliest tokens' logits with each fault in each layer, and without any at the end."""
    model = watch.runner_of(llm).get_model()
    found = {}
    for layer in range(len(model.model.layers)):
        for kind in faults.KINDS:
            name = f"{kind}, layer {layer}"
            with faults.planted(model, layer, kind):
                found[name] = generate(llm, step | {"key": name, "tops": 2}, arrays)["replies"]
    return {"faults": found, "healed": generate(llm, step | {"key": "healed", "tops": 2}, arrays)["replies"]}


def main(path: Path) -> None:
    """Do the job; whatever fails ends the process with a traceback and a status that is not 0."""
    job = json.loads(path.read_text())
    stem = job["out"]  # a name with dots: with_suffix would cut it
    result: dict = {}
    arrays: dict = {}
    asked: dict[str, list] = {}
    if job.get("open_gate"):
        watch.open_gate()
    if job.get("record"):  # before the counters: they count what it lets through
        recorded.RECORDER.install()
    watch.install()
    from vllm import LLM

    begun = time.monotonic()
    llm = LLM(model=job["model"], **job["llm"])
    result["load_seconds"] = time.monotonic() - begun
    result |= watch.facts(llm)
    if job.get("counters"):
        watch.count_kernels(job["counters"])
    done = {
        "generate": generate, "score": score, "soak": soak.soak, "hidden": hidden, "faults": planted,
        "recorded": recorded.recorded,
    }  # fmt: skip
    try:
        for step in job["steps"]:
            if step.get("of"):  # what this engine said itself, in an earlier step
                said = zip(asked[step["of"]], result[step["of"]]["replies"], strict=True)
                step["sequences"] = [{"prompt": prompt, "reply": reply} for prompt, reply in said]
            asked[step["key"]] = step.get("prompts", [])
            result[step["key"]] = done[step["do"]](llm, step, arrays)
    finally:
        result["xqa"] = watch.COUNTS["xqa"]  # also those of the capture
        # What was done before a step failed is worth keeping.
        np.savez(f"{stem}.npz", **arrays)
        Path(f"{stem}.json").write_text(json.dumps(result))
    print("done", flush=True)
    bound.tell()
    # The interpreter's end can hang on threads of the engine; the results are written.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
