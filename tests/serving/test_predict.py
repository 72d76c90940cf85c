"""Predicted figures against the byte model's published table (gpt-oss-120b, 273 GB/s)."""

import pytest

from sparkforge.serving import predict
from sparkforge.serving.predict import Kept, Shape
from sparkforge.serving.profile_table import figures
from sparkforge.serving.words import command

SHAPE = predict.SHAPES["openai/gpt-oss-120b"]
BF16 = Kept()
ALL = Kept(qkv=True, out=True, lm_head=True)
FP8 = Kept(qkv=True, out=True, lm_head=True, kv=1)


@pytest.mark.parametrize(
    ("kept", "gigabytes", "tokens"),
    [
        (BF16, 5.083, 53.7),
        (Kept(lm_head=True), 4.233, 64.5),
        (Kept(qkv=True, out=True), 3.680, 74.2),
        (ALL, 2.829, 96.5),
        (FP8, 2.789, 97.9),
    ],
)
def test_bytes_of_a_step_and_the_roof(kept, gigabytes, tokens):
    assert predict.step(SHAPE, kept, 2048) / 1e9 == pytest.approx(gigabytes, abs=0.0015)
    assert predict.roof(SHAPE, kept, 2048) == pytest.approx(tokens, abs=0.05)


@pytest.mark.parametrize(("context", "tokens"), [(512, 98.9), (8192, 94.1), (32768, 81.4), (131072, 52.8)])
def test_the_roof_by_context(context, tokens):
    assert predict.roof(SHAPE, FP8, context) == pytest.approx(tokens, abs=0.05)


def test_the_checkpoint_and_what_marlin_makes_of_it():
    assert predict.resident(SHAPE, BF16) / 1e9 == pytest.approx(65.25, abs=0.1)
    assert predict.padded(SHAPE, "marlin") == pytest.approx(3072 * 2944 / 2880**2)
    assert predict.padded(SHAPE, "gemm") == pytest.approx(2944**2 / 2880**2)
    assert predict.padded(Shape(layers=2, experts=2, hidden=512, inner=512), "marlin") == 1.0


def test_two_machines_share_evenly():
    two = Kept(qkv=True, out=True, lm_head=True, machines=2)
    assert predict.resident(SHAPE, two) * 2 == pytest.approx(predict.resident(SHAPE, ALL))
    assert predict.roof(SHAPE, two, 2048) == pytest.approx(2 * predict.roof(SHAPE, ALL, 2048))


def test_every_gpt_oss_profile_fits_a_spark_with_room_for_a_whole_request(known):
    for profile in known.profiles.values():
        said = figures(command(known, profile))
        if profile.made:
            assert said is None
            continue
        assert said.kv_requests >= 1, profile.name
        flags = {group[0]: group[1:] for group in command(known, profile).groups}
        assert float(flags["--gpu-memory-utilization"][0]) <= 0.75  # the rest is the system's, in the same memory


def test_a_model_that_does_not_fit_has_no_room():
    assert predict.room(SHAPE, BF16, 0.5, "marlin", 6e9) == 0.0


def test_figures_follow_the_words(known):
    short = known.find("gpt-oss-120b-short")
    ngram = known.find("gpt-oss-120b-ngram")  # of the same limits, with a BF16 cache
    soaked, every, bf16 = (figures(command(known, *of)) for of in ((short,), (short, "all"), (ngram,)))
    assert (bf16.roof, soaked.roof, every.roof) == (96.5, 97.9, 97.9)
    assert soaked.kv_tokens == pytest.approx(2 * bf16.kv_tokens, abs=1)  # half the bytes
    assert every.kv_tokens > soaked.kv_tokens  # CUTLASS pads less
    assert every.weights_gb < soaked.weights_gb == bf16.weights_gb


def break_even(shape, kept, context, drafted):
    """Tokens that a step must yield for speculation to read no more bytes a token."""
    return predict.step(shape, kept, context, drafted + 1) / predict.step(shape, kept, context)


@pytest.mark.parametrize(("kept", "yields"), [(FP8, (1.66, 2.92, 3.52, 5.75)), (BF16, (1.36, 2.05, 2.38, 3.60))])
def test_break_even_of_speculation(kept, yields):
    found = [break_even(SHAPE, kept, 2048, drafted) for drafted in (1, 3, 4, 8)]
    assert found == pytest.approx(yields, abs=0.0051)
