"""The shape of a tiny gpt-oss and the configuration files that say it to transformers and vLLM."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sparkforge.core.errors import BadInput

# As in openai/gpt-oss-120b: the same values cost nothing, and the code that they steer (yarn's scaled attention, the
# clamp of SwiGLU) is then the code that the large model runs.
_ROPE_THETA = 150000.0
_ROPE_SCALING = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
MAX_POSITIONS = 131072
_SWIGLU_LIMIT = 7.0
_EPSILON = 1e-5


@dataclass(frozen=True)
class TinyShape:
    """Sizes of a gpt-oss; the defaults make 15 MB that two slow cores serve.

    Attributes:
        hidden: width of the residual stream; a multiple of 32, which vLLM's CPU experts ask for.
        intermediate: width inside an expert; a multiple of 32, for the same reason.
        layers: number of layers; even ones attend within the window, odd ones to everything.
        heads: query heads; a multiple of `kv_heads`.
        kv_heads: key and value heads.
        head_dim: width of a head; 64 in every gpt-oss.
        experts: experts a layer.
        top: experts that a token visits.
        vocab: tokens; at least the 256 bytes and the special tokens.
        window: length of the sliding window, in tokens; the large model has 128. In a window of 32 one token
            too few moves the logits by ten times what bf16 arithmetic does, in one of 128 it hides there.
        seed: of the weights.
    """

    hidden: int = 256
    intermediate: int = 256
    layers: int = 4
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    experts: int = 8
    top: int = 4
    vocab: int = 512
    window: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "seed" and value < 1:
                raise BadInput(f"a tiny model cannot have {name} {value}")
        for name in ("hidden", "intermediate"):
            if getattr(self, name) % 32:
                raise BadInput(f"{name} {getattr(self, name)} is not a multiple of 32")
        if self.heads % self.kv_heads:
            raise BadInput(f"{self.heads} query heads do not divide over {self.kv_heads} key and value heads")
        if self.top > self.experts:
            raise BadInput(f"a token cannot visit {self.top} of {self.experts} experts")


def config(shape: TinyShape, *, end: int, pad: int) -> dict[str, object]:
    """Content of config.json; `end` and `pad` are token ids."""
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": True,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "eos_token_id": end,
        "pad_token_id": pad,
        "experts_per_token": shape.top,
        "num_experts_per_tok": shape.top,
        "num_local_experts": shape.experts,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "initial_context_length": _ROPE_SCALING["original_max_position_embeddings"],
        "layer_types": ["full_attention" if layer % 2 else "sliding_attention" for layer in range(shape.layers)],
        "max_position_embeddings": MAX_POSITIONS,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": _EPSILON,
        "rope_scaling": _ROPE_SCALING,
        "rope_theta": _ROPE_THETA,
        "sliding_window": shape.window,
        "swiglu_limit": _SWIGLU_LIMIT,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": shape.vocab,
    }


def generation_config(*, end: int, pad: int) -> dict[str, object]:
    """Content of generation_config.json."""
    return {"eos_token_id": end, "pad_token_id": pad}
