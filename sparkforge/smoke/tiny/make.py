"""A tiny gpt-oss in the store: made once for a shape, again only when its generator changes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from sparkforge.core.hashing import key_of
from sparkforge.core.store import Store
from sparkforge.smoke.tiny import tokenizer as words
from sparkforge.smoke.tiny.shape import MAX_POSITIONS, TinyShape, config, generation_config
from sparkforge.smoke.tiny.weights import write_weights

KIND = "tiny-model"
_GENERATOR = ("shape.py", "weights.py", "tokenizer.py", "tokenizer.json", "make.py")


def make(store: Store, shape: TinyShape | None = None) -> Path:
    """Directory of a tiny random gpt-oss: config, bf16 safetensors, tokenizer; cached by content.

    The directory is what `vllm serve` and transformers' `from_pretrained` take.

    Args:
        store: where it is kept.
        shape: its sizes and seed; None takes the defaults.
    """
    shape = shape or TinyShape()
    here = Path(__file__).parent
    key = key_of([here / name for name in _GENERATOR], asdict(shape))
    if not store.has(KIND, key):
        with store.writing(KIND, key) as folder:
            write(folder, shape)
    return store.path(KIND, key)


def write(folder: Path, shape: TinyShape) -> None:
    """Write the files of a tiny gpt-oss into a directory that is there."""
    end, pad = words.special_id(words.END, shape.vocab), words.special_id(words.PAD, shape.vocab)
    files = {
        "config.json": config(shape, end=end, pad=pad),
        "generation_config.json": generation_config(end=end, pad=pad),
        "tokenizer.json": words.tokenizer(shape.vocab),
        "tokenizer_config.json": words.tokenizer_config(MAX_POSITIONS),
    }
    for name, content in files.items():
        folder.joinpath(name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write_weights(folder / "model.safetensors", shape)
