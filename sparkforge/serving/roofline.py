"""The roof of decoding: bytes that one token reads, by component, and the tokens a second that a bandwidth allows.

Computed from a model's configuration by `predict`; nothing here is measured. Padding of the experts is counted where a
kernel is named, because the kernel reads it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkforge.core.errors import BadInput
from sparkforge.serving import predict
from sparkforge.serving.predict import SHAPES, Kept, Shape

LAYERS = ("moe", "qkv", "o", "lm_head")
KERNELS = ("none", "marlin", "gemm")
DEFAULT = "openai/gpt-oss-120b"
_NEEDED = {
    "layers": "num_hidden_layers",
    "experts": "num_local_experts",
    "hidden": "hidden_size",
    "inner": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head": "head_dim",
    "vocab": "vocab_size",
}


@dataclass(frozen=True)
class Roof:
    """The roof of one configuration.

    Attributes:
        model: as it was named.
        parameters: of the whole model.
        layers: held in MXFP4.
        kv: fp8 or bf16.
        context: tokens in the KV cache.
        tokens: verified in one step; 1 is plain decoding.
        kernel: whose padding of the experts is counted, or none.
        bandwidth: bytes a second.
        bytes: that one step reads, by component.
        roof: tokens a second: `tokens` a step, if all of them are accepted.
        break_even: tokens that a step must yield to read no more bytes a token than plain decoding.
    """

    model: str
    parameters: int
    layers: tuple[str, ...]
    kv: str
    context: int
    tokens: int
    kernel: str
    bandwidth: float
    bytes: dict[str, float]
    roof: float
    break_even: float

    @property
    def total(self) -> float:
        """Bytes of one step."""
        return sum(self.bytes.values())


def shape_of(model: str) -> Shape:
    """Shape of a known model, or of a Hugging Face config.json of the gpt-oss family.

    Raises:
        BadInput: no such model or file, or the file lacks a key.
    """
    known = {name.rpartition("/")[2]: shape for name, shape in SHAPES.items()} | SHAPES
    if model in known:
        return known[model]
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    try:
        said: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as lost:
        raise BadInput(
            f"{model} is no known model and no readable config.json",
            why=f"known: {', '.join(sorted(SHAPES))}; {lost}",
            do="--model FOLDER/config.json",
        ) from lost
    missing = [key for key in _NEEDED.values() if not isinstance(said.get(key), int)]
    top = said.get("num_experts_per_tok", said.get("experts_per_token"))
    if missing or not isinstance(top, int):
        raise BadInput(
            f"{path} is not of the gpt-oss family", why=f"it lacks {', '.join(missing) or 'num_experts_per_tok'}"
        )
    kinds = said.get("layer_types") or []
    sizes = {name: int(said[key]) for name, key in _NEEDED.items()}
    return Shape(
        **sizes,
        top=top,
        window=int(said.get("sliding_window") or 0) or 1 << 40,
        full=kinds.count("full_attention") if kinds else None,
    )


def roofline(
    model: str = DEFAULT,
    *,
    layers: str = "all",
    kv: str = "fp8",
    context: int = 2048,
    tokens: int = 1,
    kernel: str = "none",
    bandwidth: float = predict.BANDWIDTH,
) -> Roof:
    """The roof of a configuration.

    Args:
        model: a known model, or the path of a config.json.
        layers: held in MXFP4: `all`, or some of moe, qkv, o, lm_head with commas between; the experts always are.
        kv: fp8 or bf16.
        context: tokens in the KV cache.
        tokens: verified in one step.
        kernel: marlin or gemm to count that kernel's padding of the experts; none to leave it out.
        bandwidth: bytes a second.

    Raises:
        BadInput: a word that means nothing, or a number that cannot be.
    """
    named = LAYERS if layers == "all" else tuple(word.strip() for word in layers.split(",") if word.strip())
    wrong = [word for word in named if word not in LAYERS]
    if wrong:
        raise BadInput(f"there is no layer {wrong[0]!r}", why=f"layers: all, {', '.join(LAYERS)}")
    if kv not in ("fp8", "bf16"):
        raise BadInput(f"there is no KV type {kv!r}", why="types: fp8, bf16")
    if kernel not in KERNELS:
        raise BadInput(f"there is no kernel {kernel!r}", why=f"kernels: {', '.join(KERNELS)}")
    if context < 0 or tokens < 1 or bandwidth <= 0:
        raise BadInput("context, tokens and bandwidth are counts", why=f"got {context}, {tokens}, {bandwidth}")
    shape = shape_of(model)
    kept = Kept("qkv" in named, "o" in named, "lm_head" in named, 1 if kv == "fp8" else 2)
    of_step = predict.components(shape, kept, context, tokens, None if kernel == "none" else kernel)
    plain = predict.components(shape, kept, context, 1, None if kernel == "none" else kernel)
    return Roof(
        model=model,
        parameters=shape.total,
        layers=tuple(layer for layer in LAYERS if layer in named or layer == "moe"),
        kv=kv,
        context=context,
        tokens=tokens,
        kernel=kernel,
        bandwidth=bandwidth,
        bytes=of_step,
        roof=tokens * bandwidth / sum(of_step.values()),
        break_even=sum(of_step.values()) / sum(plain.values()),
    )
