import json
import math
import re
import struct
from dataclasses import replace

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkforge.core.errors import BadInput
from sparkforge.core.hashing import sha256_tree
from sparkforge.core.store import Store
from sparkforge.smoke.tiny.make import make, write
from sparkforge.smoke.tiny.shape import TinyShape, config
from sparkforge.smoke.tiny.tokenizer import CHAT_TEMPLATE, SPECIAL, tokenizer
from sparkforge.smoke.tiny.weights import Tensor, bf16, draw, tensors

SMALL = TinyShape(hidden=32, intermediate=32, layers=2, heads=2, kv_heads=1, experts=4, vocab=520)


def test_it_is_made_once_for_a_shape(tmp_path):
    store = Store.open(tmp_path)
    first = make(store, SMALL)
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert make(store, SMALL) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    assert make(store, replace(SMALL, seed=1)) != first


def test_its_bytes_follow_from_shape_and_seed(tmp_path):
    for name, shape in {"a": SMALL, "b": SMALL, "c": replace(SMALL, seed=1)}.items():
        (tmp_path / name).mkdir()
        write(tmp_path / name, shape)
    assert sha256_tree(tmp_path / "a") == sha256_tree(tmp_path / "b")
    assert (tmp_path / "a/model.safetensors").read_bytes() != (tmp_path / "c/model.safetensors").read_bytes()


def test_the_default_has_the_bytes_that_the_limits_of_regret_were_measured_on(tmp_path):
    write(tmp_path, TinyShape())
    (tmp_path / "tokenizer_config.json").unlink()
    assert sha256_tree(tmp_path) == "a288704dfeffeea0c3783c901a499d2e01b88c2b34bd6cb809837f41b711288d"


def test_the_file_of_weights_is_whole(tmp_path):
    write(tmp_path, SMALL)
    data = (tmp_path / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__")
    assert size % 8 == 0
    end = 0
    for tensor in tensors(SMALL):
        entry = header.pop(tensor.name)
        assert entry == {"dtype": "BF16", "shape": list(tensor.dims), "data_offsets": [end, end + 2 * tensor.count]}
        end += 2 * tensor.count
    assert not header
    assert len(data) == 8 + size + end


@given(st.floats(width=32, min_value=-(2.0**100), max_value=2.0**100))
def test_bf16_is_the_nearest(value):
    def back(code):
        return struct.unpack("<f", struct.pack("<I", code << 16))[0]

    code = bf16(value)
    assert math.isfinite(back(code))
    others = [back(code + step) for step in (-1, 1) if 0 <= code + step <= 0xFFFF]
    assert all(abs(back(code) - value) <= abs(other - value) for other in others if math.isfinite(other))


def test_values_have_the_mean_and_spread_asked_for():
    tensor = Tensor("x", (64, 1024), 3.0, 0.5)
    data = b"".join(draw(tensor, 0))
    values = [struct.unpack("<f", b"\0\0" + data[at : at + 2])[0] for at in range(0, len(data), 2)]
    mean = sum(values) / len(values)
    spread = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
    assert len(values) == tensor.count
    assert mean == pytest.approx(3.0, abs=0.02)
    assert spread == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("vocab", [512, 520, 5000])
def test_every_id_has_one_token_and_every_merge_its_parts(vocab):
    made = tokenizer(vocab)
    known = made["model"]["vocab"]
    ids = sorted([*known.values(), *(one["id"] for one in made["added_tokens"])])
    assert ids == list(range(vocab))
    assert len(made["model"]["merges"]) == 247
    for left, right in made["model"]["merges"]:
        assert {left, right, left + right} <= known.keys()
        assert known[left + right] > max(known[left], known[right])


def test_every_byte_is_a_token():
    """Printable bytes of Latin-1 stand for themselves, the others for the characters from U+0100 on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    letters = [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]
    known = tokenizer()["model"]["vocab"]
    assert [known[letter] for letter in letters] == list(range(256))


def test_special_tokens_come_last_and_are_those_of_gpt_oss():
    for vocab in (512, 520):
        made = tokenizer(vocab)["added_tokens"]
        assert [one["content"] for one in made] == list(SPECIAL)
        assert [one["id"] for one in made] == list(range(vocab - len(SPECIAL), vocab))


def test_the_chat_template_makes_text_of_messages(tmp_path):
    write(tmp_path, SMALL)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    rendered = jinja2.Template(config["chat_template"]).render(
        messages=[{"role": "system", "content": "a"}, {"role": "user", "content": "b"}], add_generation_prompt=True
    )
    assert rendered == "<|start|>system<|message|>a<|end|><|start|>user<|message|>b<|end|><|start|>assistant"
    assert set(re.findall(r"<\|\w+\|>", CHAT_TEMPLATE)) <= set(SPECIAL)


def test_the_names_that_the_reasoning_parser_looks_up_are_there():
    assert {"<|end|>", "<|channel|>", "<|message|>"} <= set(SPECIAL)


def test_layers_take_turns_with_the_window():
    assert config(SMALL, end=1, pad=0)["layer_types"] == ["sliding_attention", "full_attention"]


@pytest.mark.parametrize(
    "wrong", [{"hidden": 33}, {"intermediate": 48}, {"heads": 3, "kv_heads": 2}, {"top": 9}, {"layers": 0}]
)
def test_a_shape_that_cannot_be_is_refused(wrong):
    with pytest.raises(BadInput):
        TinyShape(**wrong)


def test_a_vocabulary_smaller_than_the_file_is_refused():
    with pytest.raises(BadInput):
        tokenizer(511)
