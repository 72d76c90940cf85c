"""The tokenizer of the tiny model: byte-level BPE, in the format of the `tokenizers` library.

`tokenizer.json` has 256 bytes, 247 merges and the special tokens of gpt-oss that vLLM's reasoning parser looks up when
the engine starts. So any text has tokens, and any id of the vocabulary has a text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sparkforge.core.errors import BadInput

FILE = Path(__file__).with_name("tokenizer.json")
SIZE = 512
PAD = "<|endoftext|>"
END = "<|return|>"
SPECIAL = (
    *("<|startoftext|>", PAD, END, "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>", "<|call|>"),
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


def tokenizer(vocab: int = SIZE) -> dict[str, Any]:
    """Content of tokenizer.json with exactly `vocab` tokens; unused ones fill it up, the special ones come last.

    Raises:
        BadInput: the vocabulary is smaller than the file's.
    """
    if vocab < SIZE:
        raise BadInput(f"a vocabulary of {vocab} tokens is too small", why=f"the tiny tokenizer has {SIZE}")
    made: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    for place in range(SIZE - len(SPECIAL), vocab - len(SPECIAL)):
        made["model"]["vocab"][f"<unused {place}>"] = place
    for token in made["added_tokens"]:
        token["id"] = special_id(token["content"], vocab)
    return made


def tokenizer_config(positions: int) -> dict[str, object]:
    """Content of tokenizer_config.json; `positions` is the longest context in tokens."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[0],
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": positions,
        "chat_template": CHAT_TEMPLATE,
    }


def special_id(name: str, vocab: int) -> int:
    """Token id of a special token in a vocabulary of that size."""
    return vocab - len(SPECIAL) + SPECIAL.index(name)
