"""Score generated tokens with transformers' own gpt-oss, teacher forced; runs where the server's Python is.

Reads JSON from the file that is its only argument, prints JSON as the last line of standard output:

    {"model": DIR, "sequences": [{"prompt": [ids], "generated": [ids]}, ...]}
    {"sequences": [{"regret": [..], "floor": [..], "spread": [..]}, ...], "versions": {...}}

For each generated token, given the prompt and the tokens generated before it:

- regret: the reference's best logit less its logit of that token; 0 where the reference would say the same;
- floor: the regret of what transformers itself says when it computes in bf16 instead of fp32;
- spread: standard deviation of the reference's logits at that place, the yardstick for both.

The reference computes in fp32 from the same bf16 weights, with eager attention.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

# Read when torch is loaded: threads that wait by spinning take the cores from the server beside us.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import transformers
from transformers import AutoModelForCausalLM


def logits_of(model_dir: str, dtype: torch.dtype, rows: list[list[int]]) -> list[torch.Tensor]:
    """Logits [tokens, vocab] in fp32 of each row, one forward pass each."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, attn_implementation="eager").eval()
    with torch.inference_mode():
        return [model(torch.tensor([row]), use_cache=False).logits[0].float() for row in rows]


def main() -> None:
    """Answer one request."""
    asked = json.loads(Path(sys.argv[1]).read_bytes())
    pairs = [(one["prompt"], one["generated"]) for one in asked["sequences"]]
    rows = [prompt + generated for prompt, generated in pairs]
    exact = logits_of(asked["model"], torch.float32, rows)
    rough = logits_of(asked["model"], torch.bfloat16, rows)
    scored = []
    for (prompt, generated), sure, unsure in zip(pairs, exact, rough, strict=True):
        # The logits at a place choose the token after it.
        places = slice(len(prompt) - 1, len(prompt) + len(generated) - 1)
        best = sure[places].max(dim=-1).values
        said = sure[places].gather(1, torch.tensor(generated)[:, None])[:, 0]
        own = sure[places].gather(1, unsure[places].argmax(dim=-1)[:, None])[:, 0]
        scored.append(
            {
                "regret": (best - said).tolist(),
                "floor": (best - own).tolist(),
                "spread": sure[places].std(dim=-1).tolist(),
            }
        )
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    print(json.dumps({"sequences": scored, "versions": versions}))


if __name__ == "__main__":
    main()
