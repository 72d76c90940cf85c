"""Compile the FlashInfer modules that the engines load, all at once; q and o in BF16.

    python jit.py RESULT.json [--xqa]

FA2 with sinks, KV in BF16 and FP8; with --xqa XQA instead, KV in BF16, for the shapes of checkpoint.py.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import bound
import torch
from checkpoint import SHAPES
from flashinfer.jit.attention.modules import gen_customize_batch_prefill_module
from flashinfer.jit.attention.sink import batch_prefill_attention_sink_jit
from flashinfer.jit.core import build_jit_specs

NO_POSITION = 0  # PosEncodingMode.NONE: vLLM applies rope itself


def main(out: Path, *, xqa: bool) -> None:
    """Build them and say how long it took."""
    specs = of_xqa() if xqa else of_sinks()
    begun = time.monotonic()
    build_jit_specs(specs, verbose=False)
    out.write_text(json.dumps({"modules": [spec.name for spec in specs], "seconds": time.monotonic() - begun}))


def of_xqa() -> list:
    """Pages of 16 tokens, as vLLM's FlashInfer has them; a window or none."""
    from flashinfer.jit.xqa import gen_xqa_module

    shape = SHAPES["tiny"]
    types = {"input_dtype": torch.bfloat16, "kv_cache_dtype": torch.bfloat16, "output_dtype": torch.bfloat16}
    heads = {"page_size": 16, "head_dim": shape.head_dim, "head_group_ratio": shape.heads // shape.kv_heads}
    return [gen_xqa_module(**types, **heads, use_sliding_window=window) for window in (True, False)]


def of_sinks() -> list:
    """With a window and without."""
    specs = []
    for kv in (torch.bfloat16, torch.float8_e4m3fn):
        for window in (True, False):
            arguments, more = batch_prefill_attention_sink_jit(
                "fa2", torch.bfloat16, kv, torch.bfloat16, torch.int32, 64, 64, NO_POSITION, window
            )
            specs.append(gen_customize_batch_prefill_module("fa2", *arguments, **more))
    return specs


if __name__ == "__main__":
    main(Path(sys.argv[1]), xqa="--xqa" in sys.argv)
    bound.tell()
