"""A byte-level BPE tokenizer, learned from a few sentences of ours, in the format of the `tokenizers` library.

Every byte is a token, so any text can be written, and there is a token for every id of the vocabulary, so any
id can be read. The special tokens carry the names that gpt-oss gives its own: vLLM's reasoning parser for
gpt-oss looks some of them up when the engine starts.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from sparkforge.core.errors import BadInput

PAD = "<|endoftext|>"
END = "<|return|>"
SPECIAL = (
    "<|startoftext|>",
    PAD,
    END,
    "<|constrain|>",
    "<|channel|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|call|>",
)

_PROSE = """
A forge heats the iron, the hammer shapes it, the anvil holds it, and the water makes it hard. The smith looks
at the colour of the metal and knows how hot it is: red is too cold for most work, yellow is good, and white
throws sparks. A series of small blows in the right order gives a better blade than one large blow. The first
thing that the smith makes is a tool for making tools. When the work is done the smith writes down the weight,
the time and the heat, because a number without its measure is a story. Then the fire is banked for the night,
the tongs hang on the wall, and the next day begins where the last one ended: with the same fire, the same
hammer, the same steps, and so with the same blade.
"""
_WORD = re.compile(r" ?[a-zA-Z]+")


def alphabet() -> list[str]:
    """The visible character that stands for each byte 0..255 in byte-level BPE.

    Printable bytes of Latin-1 stand for themselves, the others for the characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def learn(count: int) -> list[tuple[str, str]]:
    """First `count` merges of byte-level BPE over our sentences, then pairs of tokens until there are enough."""
    letters = alphabet()
    words = Counter(tuple(letters[byte] for byte in word.encode()) for word in _WORD.findall(" ".join(_PROSE.split())))
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in words.items():
            for pair in pairwise(word):
                pairs[pair] += times
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        joined: Counter[tuple[str, ...]] = Counter()
        for word, times in words.items():
            joined[_join(word, best)] += times
        words = joined
    return merges + _more(merges, letters, count - len(merges))


def _join(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    parts: list[str] = []
    for part in word:
        if parts and (parts[-1], part) == pair:
            parts[-1] += part
        else:
            parts.append(part)
    return tuple(parts)


def _more(merges: list[tuple[str, str]], letters: list[str], count: int) -> list[tuple[str, str]]:
    """`count` merges of any token with any byte that give tokens not there yet: for large vocabularies."""
    known = {left + right for left, right in merges} | set(letters)
    queue = list(letters)
    extra: list[tuple[str, str]] = []
    for left in queue:  # grows while it is walked
        for right in letters:
            if len(extra) == count:
                return extra
            if left + right not in known:
                known.add(left + right)
                queue.append(left + right)
                extra.append((left, right))
    return extra


def tokenizer(vocab: int) -> dict[str, object]:
    """Content of tokenizer.json with exactly `vocab` tokens; the special ones come last.

    Raises:
        BadInput: there is no room for the bytes and the special tokens.
    """
    letters = alphabet()
    room = vocab - len(letters) - len(SPECIAL)
    if room < 0:
        raise BadInput(f"a vocabulary of {vocab} has no room for 256 bytes and {len(SPECIAL)} special tokens")
    merges = learn(room)
    tokens = letters + [left + right for left, right in merges]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": special_id(name, vocab),
                "content": name,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for name in SPECIAL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": True,
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: place for place, token in enumerate(tokens)},
            "merges": [list(pair) for pair in merges],
        },
    }


def tokenizer_config(positions: int) -> dict[str, object]:
    """Content of tokenizer_config.json; `positions` is the longest context in tokens."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[0],
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": positions,
    }


def special_id(name: str, vocab: int) -> int:
    """Token id of a special token in a vocabulary of that size."""
    return vocab - len(SPECIAL) + SPECIAL.index(name)
