"""An engine whose every captured graph is listed, compared at each replay, and captured again; then spoilt."""

from __future__ import annotations

import math
import time

import memory
import soak
import torch
import watch
from record import Recorder

RECORDER = Recorder()


def recorded(llm, step: dict, arrays: dict) -> dict:
    """A soak under the recorder, then all sizes anew, then the defects that it must see.

    step: a soak's, "beside" the number of replays of one graph between two captures beside it.
    """
    recorder, runner = RECORDER, watch.runner_of(llm)
    begun = time.monotonic()
    recorder.settle()
    roots = {"model": runner.get_model(), "runner": runner, "caches": runner.kv_caches, "groups": runner.attn_groups}
    result = {"listing": recorder.listing(memory.names(roots)), "settled": time.monotonic() - begun}
    recorder.again = step["beside"]
    result["soak"] = soak.soak(llm, step, arrays)
    recorder.again = 0
    result |= recorder.result()
    recorder.anew(runner)
    result |= recorder.result()
    result["planted"] = spoilt(recorder, llm, step)
    result["seconds"] = time.monotonic() - begun
    return result


def _asked(recorder, llm, step: dict) -> list[str]:
    """Answer a few requests with a capture beside each replay; what the recorder says meanwhile."""
    before = len(recorder.found)
    recorder.counts = type(recorder.counts)(
        {key: value for key, value in recorder.counts.items() if "wrong" not in key}
    )
    recorder.again = 1
    few = {**step, "seconds": 1.5, "until": math.inf, "seed": 5}
    soak.soak(llm, few, {})
    recorder.again = 0
    return recorder.found[before:]


def spoilt(recorder, llm, step: dict) -> dict:
    """What is said with a defect planted: "nothing" must be silent, all others must not."""
    model = watch.runner_of(llm).get_model()
    layer = model.model.layers[1]
    told = {"nothing": _asked(recorder, llm, step)[:4]}

    kept = layer.attn.qkv_proj.workspace
    layer.attn.qkv_proj.workspace = torch.zeros_like(kept)
    told["a workspace that moves"] = _few(_asked(recorder, llm, step))
    layer.attn.qkv_proj.workspace = kept

    from vllm import _custom_ops as ops

    # The experts' product, added up in another way: what a tuner that changes its mind would do.
    gemm = ops.moe_wna16_marlin_gemm
    try:
        ops.moe_wna16_marlin_gemm = lambda *args, **kwargs: gemm(*args, **{**kwargs, "use_fp32_reduce": False})
        told["a tactic that changes"] = _few(_asked(recorder, llm, step))
    finally:
        ops.moe_wna16_marlin_gemm = gemm

    # Last, since it cannot be mended: the graphs now read memory that belongs to nobody, and none is replayed.
    kept.untyped_storage().resize_(0)
    lost = {
        one.label for one in recorder.graphs.values() if not all(memory.holds(owner, at) for at, owner in one.owners)
    }
    told["a workspace that is freed"] = [f"{len(lost)} graphs hold freed memory"] if lost else []
    return told


def _few(found: list[str]) -> list[str]:
    return [one[:300] for one in found[:4]]
