"""Faults planted in a loaded model, in place: of each layer's sinks, experts and dense weights."""

from __future__ import annotations

import contextlib

import torch
from plan import LARGE_FAULTS, SMALL_FAULTS

KINDS = LARGE_FAULTS + SMALL_FAULTS


def _tensors(layer, kind: str) -> list[torch.Tensor]:
    """What a fault changes: the tensors that the kernels read."""
    attention, experts = layer.attn, layer.mlp.experts
    if "sinks" in kind:
        found = [attention.sinks, getattr(attention.attn.impl, "sinks", None)]
    elif "expert" in kind:
        found = [one.w2_weight for one in experts.modules() if hasattr(one, "w2_weight")]
    else:
        found = [(attention.qkv_proj if kind.startswith("qkv") else attention.o_proj).weight]
    by_place = {one.data_ptr(): one for one in found if one is not None}
    return [one.data for one in by_place.values()]


def _changed(kind: str, was: torch.Tensor) -> torch.Tensor:
    if kind == "sinks gone":
        return torch.full_like(was, -30.0)
    if kind == "attention closed by its sinks":
        return torch.full_like(was, 30.0)
    if kind == "two experts exchanged":
        return was[[1, 0, *range(2, was.shape[0])]]
    return was.roll(
        1, dims=0
    )  # sinks: by a head; experts: by one; a dense weight as Marlin packs it: by 16 of its inputs


@contextlib.contextmanager
def planted(model, layer: int, kind: str):
    """The model with one fault; as it was afterwards."""
    tensors = _tensors(model.model.layers[layer], kind)
    before = [one.clone() for one in tensors]
    try:
        for one, was in zip(tensors, before, strict=True):
            one.copy_(_changed(kind, was))
        torch.cuda.synchronize()
        yield
    finally:
        for one, was in zip(tensors, before, strict=True):
            one.copy_(was)
        torch.cuda.synchronize()
