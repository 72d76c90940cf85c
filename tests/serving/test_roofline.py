"""The roof: against the published size of the models, and against hand-made arithmetic."""

from __future__ import annotations

import json

import pytest

from sparkforge.core.errors import BadInput
from sparkforge.serving import predict
from sparkforge.serving.predict import SHAPES, Kept
from sparkforge.serving.roofline import roofline, shape_of

GIB = 2**30
CONFIG = {
    "num_hidden_layers": 24,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201088,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}


@pytest.mark.parametrize(
    ("model", "total", "checkpoint"),  # the model card of gpt-oss, table 1: parameters, and size of the checkpoint
    [("openai/gpt-oss-120b", 116.83e9, 60.8 * GIB), ("openai/gpt-oss-20b", 20.91e9, 12.8 * GIB)],
)
def test_parameters_and_checkpoint_are_as_published(model, total, checkpoint):
    shape = SHAPES[model]
    assert shape.total == pytest.approx(total, abs=0.006e9)  # published with two decimals
    held = predict.resident(shape, Kept()) + 2 * shape.biases
    assert held == pytest.approx(checkpoint, rel=0.006)


def test_active_parameters_are_as_published():
    shape = SHAPES["openai/gpt-oss-120b"]
    active = shape.layers * shape.top * shape.expert + shape.qkv + shape.out + shape.router + shape.head_weights
    assert active == pytest.approx(5.13e9, rel=2e-3)


def test_without_words_it_is_the_roof_of_the_default_configuration():
    roof = roofline()
    assert round(roof.roof, 1) == 97.9
    assert roof.total == pytest.approx(2.789e9, rel=1e-3)
    assert roof.bytes["lm_head"] == 201088 * 2880 * 4.25 / 8


@pytest.mark.parametrize(
    ("words", "tokens_a_second"),  # the byte model that docs/measurements.md quotes
    [
        ({"layers": "moe", "kv": "bf16"}, 53.7),
        ({"layers": "moe,lm_head", "kv": "bf16"}, 64.5),
        ({"layers": "qkv,o", "kv": "bf16"}, 74.2),
        ({"kv": "bf16"}, 96.5),
        ({"bandwidth": 213e9}, 76.4),
        ({"context": 131072}, 52.8),
    ],
)
def test_roofs_of_other_configurations(words, tokens_a_second):
    assert roofline(**words).roof == pytest.approx(tokens_a_second, abs=0.06)


def test_padding_is_read_too():
    padded = roofline(kernel="marlin")
    assert padded.bytes["experts"] == pytest.approx(roofline().bytes["experts"] * 3072 * 2944 / 2880**2)
    assert 91 < padded.roof < 93


def test_break_even_of_speculation():
    assert round(roofline(tokens=2).break_even, 2) == 1.66
    assert round(roofline(tokens=2, layers="moe", kv="bf16").break_even, 2) == 1.36
    assert roofline().break_even == 1


def test_a_config_of_the_family(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    assert roofline(str(tmp_path)).roof == roofline("gpt-oss-20b").roof
    path.write_text(json.dumps(CONFIG | {"layer_types": ["full_attention"] * 24}))
    assert shape_of(str(path)).full_layers == 24
    path.write_text(json.dumps(CONFIG | {"intermediate_size": 5760}))
    assert roofline(str(path)).bytes["experts"] == 2 * roofline("gpt-oss-20b").bytes["experts"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"model": "llama"}, "llama is no known model"),
        ({"layers": "moe,router"}, "there is no layer 'router'"),
        ({"kv": "fp4"}, "there is no KV type 'fp4'"),
        ({"kernel": "triton"}, "there is no kernel 'triton'"),
        ({"tokens": 0}, "are counts"),
    ],
)
def test_what_means_nothing_is_refused(words, said):
    with pytest.raises(BadInput, match=said):
        roofline(**words)


def test_a_config_that_lacks_a_key_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({key: CONFIG[key] for key in CONFIG if key != "head_dim"}))
    with pytest.raises(BadInput, match="not of the gpt-oss family"):
        roofline(str(tmp_path))
