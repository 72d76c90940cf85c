"""Which modules `needed` leaves out, from what parts need."""

from __future__ import annotations

import pytest

from sparkforge.aot.selection import PartModules, left_out, parts_without
from sparkforge.core.errors import BadInput
from sparkforge.serving import carried
from sparkforge.serving.load import catalogue

SINKS = [f"batch_prefill_with_attention_sink_{kind}" for kind in ("bf16", "e4m3")]
NAMES = ["fused_moe_120", "trtllm_utils", "sampling", *SINKS]
MOE = PartModules("moe", on=False, modules=("fused_moe_120", "trtllm_utils"))
ATTENTION = PartModules("attention", on=True, modules=("batch_prefill_with_attention_sink_*",))


def test_a_module_stays_where_no_part_names_it_or_one_that_is_on_does():
    assert left_out(NAMES, [MOE, ATTENTION]) == {"fused_moe_120": ["moe"], "trtllm_utils": ["moe"]}
    also = PartModules("also", on=True, modules=("trtllm_*",))
    assert left_out(NAMES, [MOE, ATTENTION, also]) == {"fused_moe_120": ["moe"]}
    assert left_out(NAMES, []) == {}


def test_each_part_that_is_off_is_named():
    other = PartModules("other", on=False, modules=("trtllm_utils",))
    without = left_out(NAMES, [MOE, other])
    assert without == {"fused_moe_120": ["moe"], "trtllm_utils": ["moe", "other"]}
    assert parts_without(without) == {"moe": ["fused_moe_120", "trtllm_utils"], "other": ["trtllm_utils"]}


def test_a_module_that_flashinfer_does_not_list_is_refused():
    with pytest.raises(
        BadInput, match="part moe names a module that FlashInfer does not list: fused_moe_120"
    ) as refused:
        left_out(["sampling"], [MOE])
    assert "parts.yaml" in refused.value.do


def test_the_parts_of_the_default_profile_need_attention_and_not_the_moe():
    parts = {one.part: one for one in carried.modules()}
    assert parts["flashinfer-attention"].on
    assert not parts["cutlass-moe"].on
    others = ["xqa_x", "mxfp8_quantization_sm100", "fp4_quantization_120f", "batch_prefill_with_kv_cache_x"]
    without = left_out([*NAMES, *others], carried.modules())
    assert not set(without) & {"sampling", *SINKS}
    assert without["fused_moe_120"] == ["cutlass-moe"]
    assert without["xqa_x"] == ["xqa-decode"]
    assert without["batch_prefill_with_kv_cache_x"] == ["eagle3"]
    known = catalogue()
    default = known.parts_of(known.default("serve"))
    assert not [name for name, part in default.items() if part.on and name in parts_without(without)]
