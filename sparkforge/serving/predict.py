"""What a profile needs and could reach, computed from the public configuration of gpt-oss: predicted, never measured.

Bytes are counted as in the roofline of this project: MXFP4 is 4 bits a weight and 8 bits a group of 32, the rest BF16;
a decoded token reads the weights of its experts and of every dense layer once, and its KV cache once. Not counted:
activations, logits, caches of the chip, gaps between kernels. So a roof can be missed, and not be passed.
"""

from __future__ import annotations

from dataclasses import dataclass

BANDWIDTH = 273e9
"""Bytes a second of a DGX Spark's memory, nominal."""

VISIBLE = 119 * 2**30
"""Bytes of a DGX Spark's 128 GB that CUDA reports, assumed: about 119 GiB."""

_MX = 4.25 / 8  # bytes a weight: E2M1 and one E8M0 for 32 (OCP MX 1.0, 5.2)
_BF16 = 2.0
_SMALL = 0.003e9  # biases and norms


@dataclass(frozen=True)
class Shape:
    """A gpt-oss.

    Attributes:
        layers: of which every other one attends within the window.
        experts: a layer.
        top: experts that a token visits.
        hidden: width.
        inner: width inside an expert.
        heads: query heads.
        kv_heads: key and value heads.
        head: width of a head.
        vocab: tokens.
        window: tokens that a layer with a sliding window sees.
        full: layers without a window; None is every other one.
    """

    layers: int
    experts: int
    top: int = 4
    hidden: int = 2880
    inner: int = 2880
    heads: int = 64
    kv_heads: int = 8
    head: int = 64
    vocab: int = 201088
    window: int = 128
    full: int | None = None

    @property
    def full_layers(self) -> int:
        """Layers that attend to the whole context."""
        return self.layers // 2 if self.full is None else self.full

    @property
    def expert(self) -> int:
        """Weights of one expert: gate, up and down."""
        return 3 * self.hidden * self.inner

    @property
    def biases(self) -> int:
        """Biases, norms and sinks, all layers: read from the layout of gpt-oss's checkpoint."""
        attention = (self.heads + 2 * self.kv_heads) * self.head + self.hidden + self.heads
        experts = self.experts * (2 * self.inner + self.hidden) + self.experts
        return self.layers * (attention + experts + 2 * self.hidden) + self.hidden

    @property
    def total(self) -> int:
        """Parameters of the whole model, embedding included."""
        weights = self.layers * self.experts * self.expert + self.qkv + self.out + self.router
        return weights + 2 * self.head_weights + self.biases

    @property
    def qkv(self) -> int:
        """Weights of all query, key and value projections."""
        return self.layers * self.hidden * (self.heads + 2 * self.kv_heads) * self.head

    @property
    def out(self) -> int:
        """Weights of all output projections."""
        return self.layers * self.heads * self.head * self.hidden

    @property
    def head_weights(self) -> int:
        """Weights of lm_head, and of the embedding."""
        return self.vocab * self.hidden

    @property
    def router(self) -> int:
        """Weights of all routers."""
        return self.layers * self.hidden * self.experts


SHAPES = {"openai/gpt-oss-120b": Shape(layers=36, experts=128), "openai/gpt-oss-20b": Shape(layers=24, experts=32)}


@dataclass(frozen=True)
class Kept:
    """How a model is held.

    Attributes:
        qkv: the projections of attention's input in MXFP4.
        out: those of its output.
        lm_head: that layer.
        kv: bytes of a cached number: 2 for BF16, 1 for FP8.
        machines: that share everything evenly.
    """

    qkv: bool = False
    out: bool = False
    lm_head: bool = False
    kv: int = 2
    machines: int = 1


def padded(shape: Shape, kernel: str) -> float:
    """What the experts' weights grow by, since a kernel wants round sizes (vLLM 0.21, oracle/mxfp4.py).

    Marlin pads the hidden size to 256 and the inner one to 128, CUTLASS both to 128: 9 % and 4.5 % for 2880.
    """
    wide, narrow = {"marlin": (256, 128), "gemm": (128, 128)}[kernel]
    width, inner = -(-shape.hidden // wide) * wide, -(-shape.inner // narrow) * narrow
    return width * inner / (shape.hidden * shape.inner)


def cache(shape: Shape, kept: Kept, context: int) -> float:
    """Bytes of KV that one token reads at a context length; every other layer sees its window alone."""
    full = shape.full_layers
    tokens = full * context + (shape.layers - full) * min(context, shape.window)
    return float(tokens * 2 * shape.kv_heads * shape.head * kept.kv)


def components(shape: Shape, kept: Kept, context: int, tokens: int = 1, kernel: str | None = None) -> dict[str, float]:
    """Bytes that one decode step reads, by component, with `tokens` verified at once.

    Experts of several tokens: as many as even routing visits, experts * (1 - (1 - top / experts) ** tokens), an upper
    bound on the bytes of real routing. With a kernel's padding of the experts where one is named.
    """
    visited = shape.experts * (1 - (1 - shape.top / shape.experts) ** tokens)
    return {
        "experts": shape.layers * visited * shape.expert * _MX * (padded(shape, kernel) if kernel else 1),
        "qkv": shape.qkv * (_MX if kept.qkv else _BF16),
        "o": shape.out * (_MX if kept.out else _BF16),
        "lm_head": shape.head_weights * (_MX if kept.lm_head else _BF16),
        "router": shape.router * _BF16,
        "biases and norms": _SMALL,
        "KV cache": cache(shape, kept, context),
    }


def step(shape: Shape, kept: Kept, context: int, tokens: int = 1) -> float:
    """Bytes that one decode step reads, with `tokens` verified at once, no padding."""
    return sum(components(shape, kept, context, tokens).values())


def roof(shape: Shape, kept: Kept, context: int) -> float:
    """Tokens a second that memory alone allows, one request, no speculation, perfect sharing between machines."""
    return kept.machines * BANDWIDTH / step(shape, kept, context)


def resident(shape: Shape, kept: Kept, kernel: str | None = None) -> float:
    """Bytes of all weights on each machine; with a kernel's padding where one is named."""
    read = components(shape, kept, context=0, kernel=kernel)
    experts = read["experts"] * shape.experts / shape.top  # a token reads only its own
    return (sum(read.values()) - read["experts"] + experts + shape.head_weights * _BF16) / kept.machines


def room(shape: Shape, kept: Kept, share: float, kernel: str, working: float) -> float:
    """Tokens of KV cache that fit beside the weights, on full-attention layers.

    Args:
        shape: of the model.
        kept: how it is held.
        share: of the visible memory, --gpu-memory-utilization.
        kernel: of the experts, marlin or gemm.
        working: bytes set aside for activations, graphs and the CUDA context.
    """
    free = VISIBLE * share - resident(shape, kept, kernel) - working
    each = shape.full_layers * 2 * shape.kv_heads * shape.head * kept.kv / kept.machines
    return max(free, 0.0) / each
