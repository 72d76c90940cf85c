"""Compile the FlashInfer modules with sinks that the engines load, all at once: q and o in BF16, KV in BF16 and FP8."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from flashinfer.jit.attention.modules import gen_customize_batch_prefill_module
from flashinfer.jit.attention.sink import batch_prefill_attention_sink_jit
from flashinfer.jit.core import build_jit_specs

NO_POSITION = 0  # PosEncodingMode.NONE: vLLM applies rope itself


def main(out: Path) -> None:
    """Build them and say how long it took."""
    specs = []
    for kv in (torch.bfloat16, torch.float8_e4m3fn):
        for window in (True, False):
            arguments, more = batch_prefill_attention_sink_jit(
                "fa2", torch.bfloat16, kv, torch.bfloat16, torch.int32, 64, 64, NO_POSITION, window
            )
            specs.append(gen_customize_batch_prefill_module("fa2", *arguments, **more))
    begun = time.monotonic()
    build_jit_specs(specs, verbose=False)
    out.write_text(json.dumps({"modules": [spec.name for spec in specs], "seconds": time.monotonic() - begun}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
