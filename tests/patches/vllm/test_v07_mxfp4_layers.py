"""V-07: --mxfp4-layers names the layers held in MXFP4; what cannot be is refused or, with a line in the log, left."""

from __future__ import annotations

import json

import pytest

DENSE = {"qkv": "qkv_proj", "o": "o_proj", "lm_head": "lm_head"}


def engine_args(words: list[str]):
    """Engine arguments as the real parser reads them; an unknown flag is the failure that it is."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    assert "--mxfp4-layers" in parser.format_help(), "the flag is not there"
    return EngineArgs.from_cli_args(parser.parse_args(words))


@pytest.fixture
def checkpoint(tmp_path, tiny_gpt_oss):
    """A function that writes a tiny gpt-oss's configuration, as its checkpoint's, and returns the folder."""

    def write(quantized=True):
        config = tiny_gpt_oss.to_dict() | {"architectures": ["GptOssForCausalLM"], "dtype": "bfloat16"}
        if quantized:
            config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": []}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return write


def model_config(folder, *words):
    return engine_args(["--model", str(folder), "--skip-tokenizer-init", *words]).create_model_config()


def test_the_default_is_the_experts_alone(capability, checkpoint):
    capability(12, 1)
    assert model_config(checkpoint()).mxfp4_layers == "moe"


@pytest.mark.parametrize(
    ("asked", "held"),
    [
        ("all", "moe,qkv,o,lm_head"),
        ("o, MOE,qkv", "moe,qkv,o"),
        ("moe,moe,lm_head", "moe,lm_head"),
    ],
)
def test_a_list_has_one_spelling(capability, checkpoint, asked, held):
    capability(12, 1)
    assert model_config(checkpoint(), "--mxfp4-layers", asked).mxfp4_layers == held


@pytest.mark.parametrize(
    ("asked", "quantized", "words"),
    [
        ("moe,kv", True, "kv is unknown; choose from moe, qkv, o, lm_head, all"),
        ("moe,router,mlp", True, "mlp, router is unknown"),
        ("qkv,o", True, "moe cannot be left out"),
        ("", True, "moe cannot be left out"),
        ("all", False, "follow an MXFP4 checkpoint only; this model's quantization is None"),
    ],
)
def test_what_cannot_be_is_refused_with_the_list(capability, checkpoint, asked, quantized, words):
    capability(12, 1)
    folder, refusal = checkpoint(quantized), ""
    args = engine_args(["--model", str(folder), "--skip-tokenizer-init", "--mxfp4-layers", asked])
    try:
        args.create_model_config()
    except ValueError as error:
        refusal = str(error)
    assert words in refusal


def test_the_list_enters_the_compile_key(capability, checkpoint):
    capability(12, 1)
    folder = checkpoint()
    keys = {model_config(folder, "--mxfp4-layers", text).compute_hash() for text in ("moe", "all", "lm_head,moe,o,qkv")}
    assert len(keys) == 2


@pytest.fixture
def build(one_rank, capability, checkpoint, monkeypatch):
    """A function that builds the real model class for a list of layers, on a device that is said to be 12.1."""

    def make(asked, *, lora=None, tied=False):
        import torch
        from vllm.config import LoadConfig, VllmConfig, set_current_vllm_config
        from vllm.config.device import DeviceConfig
        from vllm.model_executor.layers.fused_moe.experts import flashinfer_cutlass_moe
        from vllm.model_executor.models.gpt_oss import GptOssForCausalLM

        monkeypatch.setattr(flashinfer_cutlass_moe, "has_flashinfer_cutlass_fused_moe", lambda: True)
        capability(12, 1)
        model = model_config(checkpoint(), "--mxfp4-layers", asked)
        model.hf_config.tie_word_embeddings = tied
        config = VllmConfig(model_config=model, device_config=DeviceConfig("cpu"), load_config=LoadConfig())
        config.lora_config = lora
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with set_current_vllm_config(config):
                return GptOssForCausalLM(vllm_config=config)
        finally:
            torch.set_default_dtype(before)

    return make


def held(model) -> set[str]:
    """The kinds of dense layer that are held in MXFP4."""
    kinds = set()
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if type(method).__name__ == "Mxfp4OnlineLinearMethod":
            kinds.add(name.rsplit(".", 1)[-1])
    return kinds


@pytest.mark.parametrize("asked", ["moe", "moe,qkv", "moe,qkv,o", "moe,lm_head", "all"])
def test_exactly_the_named_layers_are_held(build, asked):
    words = list(DENSE) if asked == "all" else [word for word in asked.split(",") if word != "moe"]
    assert held(build(asked)) == {DENSE[word] for word in words}


def test_lora_falls_back_to_bf16_and_says_so(build, said):
    class Lora:
        max_loras = 1

    assert held(build("all", lora=Lora())) == set()
    assert [line for line in said if "LoRA needs BF16" in line]


def test_a_tied_head_is_skipped_and_the_log_says_so(build, said):
    assert held(build("all", tied=True)) == {"qkv_proj", "o_proj"}
    assert [line for line in said if "tied to the embedding" in line]


def test_a_head_that_shares_memory_is_skipped_though_the_configuration_is_silent(build, said):
    model = build("all")
    assert "lm_head" in held(model)
    model.lm_head.weight = model.model.embedding.weight
    model.load_weights([])
    assert "lm_head" not in held(model)
    assert [line for line in said if "shares the embedding's memory" in line]


def test_a_head_of_its_own_stays(build):
    model = build("all")
    model.load_weights([])
    assert "lm_head" in held(model)


def test_weights_load_into_the_named_layers(build):
    """The checkpoint's BF16 tensors still find their place, q, k and v in one layer among them."""
    import torch

    model = build("all")
    attn, config = model.model.layers[0].attn, model.config
    sizes = {"q_proj": 512, "k_proj": 64, "v_proj": 64}
    parts = {name: torch.randn(rows, config.hidden_size).bfloat16() for name, rows in sizes.items()}
    head = torch.randn(config.vocab_size, config.hidden_size).bfloat16()
    weights = [(f"model.layers.0.self_attn.{name}.weight", tensor) for name, tensor in parts.items()]
    assert held(model)
    model.load_weights([*weights, ("lm_head.weight", head)])
    assert torch.equal(attn.qkv_proj.weight.data, torch.cat(list(parts.values())))
    assert torch.equal(model.lm_head.weight.data[: config.vocab_size], head)
