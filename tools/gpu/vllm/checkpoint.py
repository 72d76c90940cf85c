"""A random MXFP4 gpt-oss and its BF16 twin: the same numbers, once packed and once dequantized.

    python checkpoint.py tiny FOLDER        hidden 512, 4 layers, 8 experts
    python checkpoint.py wide FOLDER        hidden 2880, 64/8 heads, 128 experts, 2 layers: the full width

FOLDER/mxfp4 is laid out as openai/gpt-oss-120b is: experts in blocks and scales, the rest in BF16. FOLDER/twin holds
in BF16 what an engine with `--mxfp4-layers all` computes with: experts, qkv, o and lm_head after MXFP4. Both are
exact: E2M1 times a power of two fits BF16. Rows of q, k and v keep their blocks when they are stacked to qkv.

The spreads make every part of the model decide tokens, as those of the project's tiny model do: a fault in any of
them must move the logits by much more than BF16 arithmetic does.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import bound
import exact
import torch
from safetensors.torch import save_file

SEED = 20261120


@dataclass(frozen=True)
class Shape:
    """Sizes of a gpt-oss; names as in its config.json."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    experts: int
    vocab: int
    window: int
    head_dim: int = 64
    top: int = 4


SHAPES = {
    # A window of 32: one token too few moves the logits by ten times what BF16 does, in one of 128 it hides.
    "tiny": Shape(512, 512, 4, 16, 2, 8, 2048, 32),
    "wide": Shape(2880, 2880, 2, 64, 8, 128, 8192, 128),
}


def config(shape: Shape, quantized: bool) -> dict:
    """Content of config.json; no token ends a reply, so that lengths are those asked for."""
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": True,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "eos_token_id": shape.vocab - 1,
        "pad_token_id": shape.vocab - 2,
        "experts_per_token": shape.top,
        "num_experts_per_tok": shape.top,
        "num_local_experts": shape.experts,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "initial_context_length": 4096,
        "layer_types": ["full_attention" if n % 2 else "sliding_attention" for n in range(shape.layers)],
        "max_position_embeddings": 131072,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "rope_theta": 150000.0,
        "sliding_window": shape.window,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": shape.vocab,
        **({"quantization_config": {"quant_method": "mxfp4"}} if quantized else {}),
    }


class Draw:
    """Normal BF16 values from one seed, in the order in which they are asked for."""

    def __init__(self, seed: int, device: str):
        self.device = device
        self.generator = torch.Generator(device=device).manual_seed(seed)

    def __call__(self, *dims: int, mean: float = 0.0, spread: float) -> torch.Tensor:
        noise = torch.randn(dims, generator=self.generator, device=self.device)
        return (noise * spread + mean).bfloat16()


def _dense(weight: torch.Tensor) -> torch.Tensor:
    """The BF16 values that MXFP4 keeps of a weight [N, K]."""
    pieces = [exact.dequantize(*exact.quantize(rows)).bfloat16() for rows in weight.split(4096)]
    return torch.cat(pieces)


def _experts(draw: Draw, count: int, n: int, k: int, spread: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Blocks u8 [E, N, K/32, 16], scales u8 [E, N, K/32] and the same values in BF16 [E, K, N], on the CPU."""
    packed = torch.empty(count, n, k // 32, 16, dtype=torch.uint8)
    shared = torch.empty(count, n, k // 32, dtype=torch.uint8)
    plain = torch.empty(count, k, n, dtype=torch.bfloat16)
    for expert in range(count):
        codes, scales = exact.quantize(draw(n, k, spread=spread))
        packed[expert] = codes.view(n, k // 32, 16).cpu()
        shared[expert] = scales.cpu()
        plain[expert] = exact.dequantize(codes, scales).bfloat16().T.contiguous().cpu()
    return packed, shared, plain


def pieces(shape: Shape, device: str, seed: int = SEED) -> Iterator[tuple[dict, dict]]:
    """Tensors of the MXFP4 checkpoint and of its twin, a layer at a time."""
    draw = Draw(seed, device)
    wide, inner, heads = shape.hidden, shape.intermediate, shape.heads * shape.head_dim
    kept = shape.kv_heads * shape.head_dim
    by_wide, by_inner, by_heads = (1 / math.sqrt(size) for size in (wide, inner, heads))
    embed = {"model.embed_tokens.weight": draw(shape.vocab, wide, spread=1.0)}
    yield embed, embed
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        plain = {
            at + "input_layernorm.weight": draw(wide, mean=1.0, spread=0.2),
            at + "self_attn.q_proj.bias": draw(heads, spread=0.3),
            at + "self_attn.k_proj.bias": draw(kept, spread=0.3),
            at + "self_attn.v_proj.bias": draw(kept, spread=0.1),
            at + "self_attn.o_proj.bias": draw(wide, spread=0.1),
            at + "self_attn.sinks": draw(shape.heads, mean=5.0, spread=1.5),
            at + "post_attention_layernorm.weight": draw(wide, mean=1.0, spread=0.2),
            at + "mlp.router.weight": draw(shape.experts, wide, spread=2.0 * by_wide),
            at + "mlp.router.bias": draw(shape.experts, spread=0.5),
            at + "mlp.experts.gate_up_proj_bias": draw(shape.experts, 2 * inner, spread=0.3),
            at + "mlp.experts.down_proj_bias": draw(shape.experts, wide, spread=0.25),
        }
        dense = {
            at + "self_attn.q_proj.weight": draw(heads, wide, spread=1.2 * by_wide),
            at + "self_attn.k_proj.weight": draw(kept, wide, spread=1.2 * by_wide),
            at + "self_attn.v_proj.weight": draw(kept, wide, spread=by_wide),
            at + "self_attn.o_proj.weight": draw(wide, heads, spread=2.0 * by_heads),
        }
        packed, twin = plain | dense, plain | {name: _dense(weight) for name, weight in dense.items()}
        for name, n, k, spread in (
            ("gate_up_proj", 2 * inner, wide, 2.5 * by_wide),
            ("down_proj", wide, inner, 0.15 * by_inner),
        ):
            blocks, scales, values = _experts(draw, shape.experts, n, k, spread)
            packed |= {at + f"mlp.experts.{name}_blocks": blocks, at + f"mlp.experts.{name}_scales": scales}
            twin |= {at + f"mlp.experts.{name}": values}
        yield packed, twin
    norm = {"model.norm.weight": draw(wide, mean=1.0, spread=0.2)}
    head = draw(shape.vocab, wide, spread=2.5 * by_wide)
    yield norm | {"lm_head.weight": head}, norm | {"lm_head.weight": _dense(head)}


def write(name: str, folder: Path, device: str) -> None:
    """Write FOLDER/mxfp4 and FOLDER/twin, one safetensors file for each layer."""
    shape = SHAPES[name]
    homes = [folder / "mxfp4", folder / "twin"]
    index: list[dict[str, str]] = [{}, {}]
    for home, quantized in zip(homes, (True, False), strict=True):
        home.mkdir(parents=True, exist_ok=True)
        home.joinpath("config.json").write_text(json.dumps(config(shape, quantized), indent=1) + "\n")
    for number, both in enumerate(pieces(shape, device)):
        file = f"model-{number:05}.safetensors"
        for home, tensors, where in zip(homes, both, index, strict=True):
            save_file({key: value.contiguous().cpu() for key, value in tensors.items()}, home / file)
            where |= dict.fromkeys(tensors, file)
    for home, where in zip(homes, index, strict=True):
        home.joinpath("model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]), "cuda" if torch.cuda.is_available() else "cpu")
    bound.tell()
