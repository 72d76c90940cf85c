"""Chats for the server: a tokenizer of ours, a template, texts, and the token ids that both must make of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))

from sparkforge.smoke.tiny import tokenizer as words

TEMPLATE = "{% for one in messages %}{{ one['role'] }}: {{ one['content'] }}\n{% endfor %}assistant:"
TEXTS = (
    "Say how hot the iron is.",
    "The smith looks at the colour of the metal. Which colour is too cold for most work?",
    "One small blow or one large blow?",
    "Write down the weight, the time and the heat, and bank the fire for the night. " * 3,
)


def rendered(text: str) -> str:
    """What the template makes of one message."""
    return f"user: {text}\nassistant:"


def ids(vocab: int) -> list[list[int]]:
    """The prompts' tokens."""
    from tokenizers import Tokenizer

    read = Tokenizer.from_str(json.dumps(words.tokenizer(vocab)))
    return [read.encode(rendered(text)).ids for text in TEXTS]


def write(home: Path, vocab: int, positions: int = 4096) -> None:
    """The tokenizer's files, template included, beside the weights."""
    files = {
        "tokenizer.json": words.tokenizer(vocab),
        "tokenizer_config.json": words.tokenizer_config(positions) | {"chat_template": TEMPLATE},
    }
    for name, content in files.items():
        (home / name).write_text(json.dumps(content, indent=1) + "\n")
