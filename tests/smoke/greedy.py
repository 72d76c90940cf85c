"""Greedy tokens by transformers in bf16: prints what a server with each of these models would generate.

greedy.py REQUEST.json, of {"models": [DIR, ...], "prompts": [...], "tokens": N}; prints for each model and prompt
{"prompt": [ids], "generated": [ids]} as the last line.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def made(folder, prompts, tokens):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager").eval()
    model.generation_config.eos_token_id = None
    for prompt in prompts:
        ids = tokenizer(prompt).input_ids
        assert tokenizer.decode(ids) == prompt
        with torch.inference_mode():
            found = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=tokens)
        yield {"prompt": ids, "generated": found[0][len(ids) :].tolist()}


torch.set_num_threads(1)  # on shared cores, threads that wait for each other are slower
asked = json.loads(Path(sys.argv[1]).read_bytes())
print(json.dumps([list(made(folder, asked["prompts"], asked["tokens"])) for folder in asked["models"]]))
