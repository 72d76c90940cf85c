"""V-06: a BF16 weight becomes MXFP4 by a stated rule, and a layer that holds it multiplies with those values."""

from __future__ import annotations

import importlib.util

import pytest

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def module():
    """The module under test; asked for inside each test, so that its absence is a failure, not an error."""
    name = "vllm.model_executor.layers.quantization.online.mxfp4"
    assert importlib.util.find_spec(name) is not None, "there is no online MXFP4"
    return importlib.import_module(name)


def reference(block):
    """The rule in exact rational arithmetic: (shared exponent, values). Independent of torch."""
    import math
    from fractions import Fraction

    amax = max(abs(Fraction(v)) for v in block)
    if amax == 0:
        return 0, [0.0] * len(block)
    exponent = math.frexp(float(amax))[1] - 1 - 2
    if amax >= 7 * Fraction(2) ** exponent:
        exponent += 1
    exponent = min(max(exponent, -127), 125)
    scale = Fraction(2) ** exponent
    held = []
    for value in block:
        want = abs(Fraction(value)) / scale
        # Nearest code; of two that are equally near, the even one.
        code = min(range(8), key=lambda c: (abs(Fraction(E2M1[c]) - want), c % 2))
        held.append(math.copysign(float(Fraction(E2M1[code]) * scale), value))
    return exponent, held


def hostile_rows():
    """Blocks of 32 BF16 values: random at many magnitudes, ties, the limits of BF16, zeros."""
    import torch

    torch.manual_seed(0)
    rows = [torch.randn(32) * 2.0**e for e in (-130, -126, -60, -8, 0, 3, 60, 120)]
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 4)
    rows += [ties, -ties, ties * 2.0**-100]
    for top in (4.0, 5.99, 6.0, 6.5, 6.97, 7.0, 7.5, 7.99):
        rows.append(torch.cat([torch.tensor([top]), torch.rand(31) * top]))
    rows += [torch.zeros(32), torch.full((32,), 3.3895313892515355e38), torch.full((32,), 2.0**-133)]
    return torch.stack(rows).to(torch.bfloat16)


def test_every_value_is_the_rules():
    online = module()
    import torch

    weight = hostile_rows()
    codes, scales = online.quantize_mxfp4(weight)
    held = online.dequantize_mxfp4(codes, scales)
    for row, got, scale in zip(weight.tolist(), held.tolist(), scales[:, 0].tolist(), strict=True):
        exponent, want = reference(row)
        assert scale - 127 == exponent, row
        assert got == want, row
    assert torch.isfinite(held).all()
    assert int(scales.max()) < 255


def test_no_nan_from_any_finite_bf16():
    online = module()
    import torch

    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    every = every[torch.isfinite(every)]
    # Each value alone among zeros, then all of them in blocks of like and of unlike size.
    alone = torch.zeros(len(every), 32, dtype=torch.bfloat16)
    alone[:, 5] = every
    shuffled = every[torch.randperm(len(every), generator=torch.Generator().manual_seed(1))].view(-1, 32)
    for weight in (alone, every.view(-1, 32), shuffled):
        codes, scales = online.quantize_mxfp4(weight)
        assert torch.isfinite(online.dequantize_mxfp4(codes, scales)).all()
        assert int(scales.max()) < 255


def test_what_mxfp4_can_hold_comes_back_exactly():
    online = module()
    import torch

    generator = torch.Generator().manual_seed(2)
    code = torch.randint(0, 16, (512, 32), generator=generator)
    exponent = torch.randint(-120, 120, (512, 1), generator=generator)
    table = torch.tensor(E2M1 + tuple(-v for v in E2M1))
    weight = torch.ldexp(table[code], exponent).to(torch.bfloat16)
    held = online.dequantize_mxfp4(*online.quantize_mxfp4(weight))
    assert torch.equal(held, weight.float())
    assert torch.equal(torch.signbit(held), torch.signbit(weight.float()))


def test_the_low_nibble_is_the_even_k():
    online = module()
    import torch

    weight = torch.zeros(1, 32, dtype=torch.bfloat16)
    weight[0, 0], weight[0, 1] = 6.0, -1.0
    codes, scales = online.quantize_mxfp4(weight)
    assert (int(codes[0, 0]), int(scales[0, 0])) == (0xA7, 127)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_not_finite_is_refused(bad):
    online = module()
    import torch

    weight = torch.ones(2, 64, dtype=torch.bfloat16)
    weight[1, 40] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        online.quantize_mxfp4(weight)


def test_rows_in_pieces_are_the_rows(monkeypatch):
    online = module()
    import torch

    weight = torch.randn(70, 96).to(torch.bfloat16)
    whole = online.quantize_mxfp4(weight)
    monkeypatch.setattr(online, "ROWS", 16)
    assert all(torch.equal(a, b) for a, b in zip(whole, online.quantize_mxfp4(weight), strict=True))


@pytest.mark.parametrize(
    ("n", "k", "rows"),
    [
        (5120, 2880, 5120),  # qkv of gpt-oss-120b
        (2880, 4096, 2880),  # o
        (201088, 2880, 201088),  # lm_head
        (100544, 2880, 100608),  # lm_head on two devices: 100544 is no multiple of 128
        (100, 128, 128),
        (128, 96, None),
    ],
)
def test_marlin_gets_rows_that_its_tiles_divide(n, k, rows):
    online = module()
    assert online.marlin_rows(n, k) == rows


def layer_of(online, n, k, bias):
    """A linear layer as vLLM builds one, with loaded weights."""
    import torch

    layer = torch.nn.Module()
    method = online.Mxfp4OnlineLinearMethod("model.layers.0.attn.o_proj")
    method.create_weights(layer, k, [n], k, n, torch.bfloat16, weight_loader=lambda *_: None)
    generator = torch.Generator().manual_seed(3)
    layer.weight.data = torch.randn(n, k, generator=generator).to(torch.bfloat16)
    layer.bias = torch.nn.Parameter(torch.randn(n, generator=generator).to(torch.bfloat16)) if bias else None
    return layer, method


@pytest.mark.parametrize("bias", [False, True])
def test_without_marlin_the_layer_multiplies_with_the_mxfp4_values(one_rank, bias):
    online = module()
    import torch

    layer, method = layer_of(online, 48, 64, bias)
    x = torch.randn(3, 64).to(torch.bfloat16)
    exact = online.dequantize_mxfp4(*online.quantize_mxfp4(layer.weight.data)).to(torch.bfloat16)
    want = torch.nn.functional.linear(x, exact, layer.bias)
    method.process_weights_after_loading(layer)
    torch.testing.assert_close(method.apply(layer, x, layer.bias), want, rtol=2**-7, atol=2**-5)


def test_a_second_processing_changes_nothing(one_rank):
    online = module()
    import torch

    layer, method = layer_of(online, 64, 64, bias=False)
    method.process_weights_after_loading(layer)
    x = torch.randn(3, 64).to(torch.bfloat16)
    first = method.apply(layer, x)
    method.process_weights_after_loading(layer)
    assert torch.equal(method.apply(layer, x), first)


def test_a_k_that_marlin_cannot_take_stays_bf16_and_says_so(one_rank, said):
    online = module()
    import torch

    layer, method = layer_of(online, 48, 96, bias=False)
    before = layer.weight.data.clone()
    x = torch.randn(3, 96).to(torch.bfloat16)
    method.process_weights_after_loading(layer)
    torch.testing.assert_close(method.apply(layer, x), torch.nn.functional.linear(x, before), rtol=2**-7, atol=2**-5)
    assert [line for line in said if "o_proj stays in BF16" in line]


def test_marlin_is_handed_padded_rows_and_the_caller_gets_its_own(capability, monkeypatch):
    """The kernel itself needs a GPU; here stands one that reads the unpacked layout of what it is handed."""
    online = module()
    import torch

    capability(12, 1)
    seen = {}

    def prepare(layer):
        seen["shape"] = tuple(layer.weight.shape), tuple(layer.weight_scale.shape), tuple(layer.bias.shape)
        assert tuple(layer.weight.shape) == (layer.output_size_per_partition, layer.input_size_per_partition // 2)
        layer.workspace = torch.zeros(1)

    def multiply(*, weight, weight_scale, size_n, size_k, bias, **rest):
        seen["size"] = (size_n, size_k)
        full = online.dequantize_mxfp4(weight, weight_scale).to(torch.bfloat16)
        return torch.nn.functional.linear(rest["input"], full, bias)

    monkeypatch.setattr(online, "prepare_fp4_layer_for_marlin", prepare)
    monkeypatch.setattr(online, "apply_fp4_marlin_linear", multiply)
    layer, method = layer_of(online, 100, 192, bias=True)
    exact = online.dequantize_mxfp4(*online.quantize_mxfp4(layer.weight.data)).to(torch.bfloat16)
    bias = layer.bias.data.clone()
    method.process_weights_after_loading(layer)
    assert seen["shape"] == ((128, 96), (128, 6), (128,))
    x = torch.randn(2, 5, 192).to(torch.bfloat16)
    y = method.apply(layer, x, layer.bias)
    assert seen["size"] == (128, 192)
    assert torch.equal(y, torch.nn.functional.linear(x, exact, bias))
    for tokens in range(1, 17):  # NCCL refuses what is not contiguous, and warm-up runs up to max_num_seqs rows
        assert method.apply(layer, torch.randn(tokens, 192).to(torch.bfloat16)).is_contiguous(), tokens
