"""Greedy tokens by transformers in bf16: prints what a server with this model would generate.

greedy.py MODEL TOKENS PROMPT...
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

torch.set_num_threads(1)  # on shared cores, threads that wait for each other are slower
folder, tokens, prompts = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager").eval()
model.generation_config.eos_token_id = None
made = []
for prompt in prompts:
    ids = tokenizer(prompt).input_ids
    assert tokenizer.decode(ids) == prompt
    with torch.inference_mode():
        found = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=tokens)
    made.append({"prompt": ids, "generated": found[0][len(ids) :].tolist()})
print(json.dumps(made))
