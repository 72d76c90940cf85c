"""Random bf16 weights from a seed, and the safetensors file that holds them; no array library is needed.

A weight is one byte of a SHAKE-256 stream, looked up in a table of 256 bf16 values: the quantiles of a normal
distribution. `bytes.translate` does the looking up for high and low bytes, so even the full width of the large
model is made at hundreds of megabytes a second, the same on every machine and every Python.

The spreads let every part of the model decide tokens: a fault in any of them moves the logits by much more than bf16
arithmetic does. With the 0.02 of a training start, attention is a flat mean and an expert adds next to nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

from sparkforge.smoke.tiny.shape import TinyShape

_BLOCK = 1 << 20  # weights drawn at a time
_BYTES = 2  # of a bf16


@dataclass(frozen=True)
class Tensor:
    """A tensor to draw: its name in the checkpoint, its shape, and mean and spread of its values."""

    name: str
    dims: tuple[int, ...]
    mean: float
    spread: float

    @property
    def count(self) -> int:
        """Number of values."""
        return math.prod(self.dims)


def bf16(value: float) -> int:
    """Bits of the bf16 nearest to a float32, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return (int(bits) + 0x7FFF + ((int(bits) >> 16) & 1)) >> 16


def tensors(shape: TinyShape) -> list[Tensor]:
    """Every tensor of a gpt-oss of this shape, as transformers names them, in the order of the file."""
    wide, inner, heads = shape.hidden, shape.intermediate, shape.heads * shape.head_dim
    kept = shape.kv_heads * shape.head_dim
    by_wide, by_inner, by_heads = (1 / math.sqrt(size) for size in (wide, inner, heads))
    found = [Tensor("model.embed_tokens.weight", (shape.vocab, wide), 0.0, 1.0)]
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        found += [
            Tensor(at + "input_layernorm.weight", (wide,), 1.0, 0.2),
            # Scores then spread by about 2.5 (yarn multiplies them by 1.81): attention looks at few tokens.
            Tensor(at + "self_attn.q_proj.weight", (heads, wide), 0.0, 1.2 * by_wide),
            Tensor(at + "self_attn.q_proj.bias", (heads,), 0.0, 0.3),
            Tensor(at + "self_attn.k_proj.weight", (kept, wide), 0.0, 1.2 * by_wide),
            Tensor(at + "self_attn.k_proj.bias", (kept,), 0.0, 0.3),
            Tensor(at + "self_attn.v_proj.weight", (kept, wide), 0.0, by_wide),
            Tensor(at + "self_attn.v_proj.bias", (kept,), 0.0, 0.1),
            Tensor(at + "self_attn.o_proj.weight", (wide, heads), 0.0, 2.0 * by_heads),
            Tensor(at + "self_attn.o_proj.bias", (wide,), 0.0, 0.1),
            # As large as the scores of a prompt together, so that a sink takes about half of a head.
            Tensor(at + "self_attn.sinks", (shape.heads,), 5.0, 1.5),
            Tensor(at + "post_attention_layernorm.weight", (wide,), 1.0, 0.2),
            Tensor(at + "mlp.router.weight", (shape.experts, wide), 0.0, 2.0 * by_wide),
            Tensor(at + "mlp.router.bias", (shape.experts,), 0.0, 0.5),
            # Gate and up interleave in the last dimension, as GptOssExperts reads them; now and then beyond
            # the clamp at 7.
            Tensor(at + "mlp.experts.gate_up_proj", (shape.experts, wide, 2 * inner), 0.0, 2.5 * by_wide),
            Tensor(at + "mlp.experts.gate_up_proj_bias", (shape.experts, 2 * inner), 0.0, 0.3),
            Tensor(at + "mlp.experts.down_proj", (shape.experts, inner, wide), 0.0, 0.15 * by_inner),
            Tensor(at + "mlp.experts.down_proj_bias", (shape.experts, wide), 0.0, 0.25),
        ]
    return [
        *found,
        Tensor("model.norm.weight", (wide,), 1.0, 0.2),
        Tensor("lm_head.weight", (shape.vocab, wide), 0.0, 2.5 * by_wide),
    ]


def draw(tensor: Tensor, seed: int) -> Iterator[bytes]:
    """Little-endian bf16 values of a tensor in row-major order, a block at a time.

    The bytes depend on the seed, the tensor's name, shape, mean and spread, and on nothing else in the model.
    """
    normal = NormalDist()
    codes = [bf16(tensor.mean + tensor.spread * normal.inv_cdf((step + 0.5) / 256)) for step in range(256)]
    low, high = bytes(code & 0xFF for code in codes), bytes(code >> 8 for code in codes)
    for block in range(0, tensor.count, _BLOCK):
        count = min(_BLOCK, tensor.count - block)
        noise = hashlib.shake_256(f"{seed}:{tensor.name}:{block}".encode()).digest(count)
        pairs = bytearray(_BYTES * count)
        pairs[0::2] = noise.translate(low)
        pairs[1::2] = noise.translate(high)
        yield bytes(pairs)


def write_weights(path: Path, shape: TinyShape) -> None:
    """Write a safetensors file: u64 length of the header, the header in JSON, the tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors(shape):
        start, end = end, end + _BYTES * tensor.count
        header[tensor.name] = {"dtype": "BF16", "shape": list(tensor.dims), "data_offsets": [start, end]}
    words = json.dumps(header, separators=(",", ":")).encode()
    words += b" " * (-len(words) % 8)  # the format wants the data aligned
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(words)))
        file.write(words)
        for tensor in tensors(shape):
            for block in draw(tensor, shape.seed):
                file.write(block)
