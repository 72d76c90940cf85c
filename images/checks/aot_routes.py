"""The routes on which vLLM serves gpt-oss on compute capability 12.x through FlashInfer, each run by vLLM's own code.

Shapes are those of gpt-oss where a module's name or a choice depends on them (heads, head size, types, window); experts
and hidden size are small, since no name holds them. Weights are zero. Nothing is computed: functions that would launch
a kernel only record that they were called.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from aot_device import DEVICE, by_default

HEADS, KV_HEADS, HEAD_DIM, WINDOW, PAGE = 64, 8, 64, 128, 16
EXPERTS, TOP_K, HIDDEN = 4, 2, 256


@dataclass(frozen=True)
class Route:
    """One route.

    Attributes:
        name: for people.
        run: what runs it.
        ends: functions of FlashInfer's modules that it must have called: a tuner goes on where a call of it fails.
        env: switches that it is taken with.
        part: of a profile, in recipes/profiles/parts.yaml, that takes it; "" where every server does.
    """

    name: str
    run: Any
    ends: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    part: str = ""


ATTENTION, XQA, MOE = "flashinfer-attention", "xqa-decode", "cutlass-moe"


def routes(without: Collection[str]) -> list[Route]:
    """Every route, but for those that only parts in `without` take."""
    found = []
    for cache in ("auto", "fp8"):
        for window in (None, WINDOW):
            what = f"attention with sinks, KV {'BF16' if cache == 'auto' else 'FP8'}, window {window or 'none'}"
            mixed, decode = (partial(attention, cache, window, graphs=graphs) for graphs in (False, True))
            ends = ("plan", "paged_run")
            found += [
                Route(what, mixed, ends, part=ATTENTION),
                Route(f"{what}, decode in graphs", decode, ends, part=ATTENTION),
                Route(f"{what}, XQA", mixed, ("xqa_wrapper",), {"VLLM_FLASHINFER_XQA_DECODE": "1"}, XQA),
            ]
    by_itself, gemm = {"VLLM_MXFP4_MOE_KERNEL": "auto"}, {"VLLM_MXFP4_MOE_KERNEL": "gemm"}
    weights = ("block_scale_interleave_sm100",)
    found += [
        Route("MoE, MXFP8 activations", moe, (*weights, "mxfp8_quantize", "run_moe"), by_itself, MOE),
        Route("MoE, BF16 activations", moe, (*weights, "run_moe"), gemm | {"VLLM_MXFP4_ACTIVATION": "bf16"}, MOE),
        Route("MoE, tuned", partial(moe, tuned=True), ("run_gemm_profile", "delay_kernel", "run_moe"), by_itself, MOE),
        Route("sampler", sampler, ("top_k_sampling_from_probs", "top_p_sampling_from_probs", "top_k_mask_logits")),
    ]
    return [route for route in found if route.part not in without]


def stand_on_the_cpu() -> None:
    """Without a GPU the CUDA build finds no platform; before anything binds the platform to a name, take the CPU's."""
    from vllm import platforms  # noqa: PLC0415  found where the check runs

    if platforms.current_platform.is_unspecified():
        from vllm.platforms.cpu import CpuPlatform  # noqa: PLC0415  as above

        platforms._current_platform = CpuPlatform()  # noqa: SLF001  where the choice is kept


def pretend(major: int, minor: int) -> None:
    """Make vLLM's platform say that it is a CUDA device of that capability; all that asks while it is imported is."""
    import vllm.model_executor.layers.fused_moe.experts.flashinfer_cutlass_moe  # noqa: PLC0415  as above
    import vllm.model_executor.layers.quantization.mxfp4  # noqa: F401, PLC0415  for its effect
    from vllm.platforms import current_platform  # noqa: PLC0415
    from vllm.platforms.interface import DeviceCapability, PlatformEnum  # noqa: PLC0415
    from vllm.v1.attention.backends import flashinfer  # noqa: PLC0415
    from vllm.v1.sample.ops import topk_topp_sampler  # noqa: F401, PLC0415  as above

    kind: Any = type(current_platform)
    kind._enum = PlatformEnum.CUDA  # noqa: SLF001  what every is_cuda() reads
    kind.device_type = DEVICE.type
    kind.device_name = f"a device of compute capability {major}.{minor}"
    kind.get_device_capability = classmethod(lambda *_, **__: DeviceCapability(major, minor))
    flashinfer._copy_page_indices_kernel = _Launched()  # noqa: SLF001  a Triton kernel: launched, not run


class _Launched:
    """A Triton kernel that is launched and does nothing."""

    def __getitem__(self, _: Any) -> Any:
        return lambda *_, **__: None


@contextlib.contextmanager
def switched(env: dict[str, str]) -> Iterator[None]:
    """These environment variables for a while."""
    before = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def configured(**cache: Any) -> Iterator[Any]:
    """A whole configuration for gpt-oss with few and small experts, set as the current one."""
    from transformers import GptOssConfig  # noqa: PLC0415
    from vllm.config import CacheConfig, ModelConfig, VllmConfig, set_current_vllm_config  # noqa: PLC0415
    from vllm.config.device import DeviceConfig  # noqa: PLC0415

    model = GptOssConfig(
        num_hidden_layers=2,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        num_local_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        vocab_size=256,
        sliding_window=WINDOW,
        max_position_embeddings=512,
    )
    with tempfile.TemporaryDirectory() as folder:
        said = model.to_dict() | {"architectures": ["GptOssForCausalLM"], "dtype": "bfloat16"}
        Path(folder, "config.json").write_text(json.dumps(said))
        config = VllmConfig(
            model_config=ModelConfig(model=folder, skip_tokenizer_init=True, dtype="bfloat16"),
            device_config=DeviceConfig("cpu"),
            cache_config=CacheConfig(block_size=PAGE, **cache),
        )
        with set_current_vllm_config(config):
            yield config


def attention(cache: str, window: int | None, *, graphs: bool) -> None:
    """A batch through builder and layer of the FlashInfer backend: decodes and a prefill, or decodes in graphs."""
    from vllm.config import CUDAGraphMode  # noqa: PLC0415
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase  # noqa: PLC0415
    from vllm.v1.attention.backend import CommonAttentionMetadata  # noqa: PLC0415
    from vllm.v1.attention.backends import flashinfer  # noqa: PLC0415
    from vllm.v1.kv_cache_interface import FullAttentionSpec, get_kv_quant_mode  # noqa: PLC0415

    class Layer(torch.nn.Module, AttentionLayerBase):  # type: ignore[misc]
        get_attn_backend = get_kv_cache_spec = None

    Layer.__abstractmethods__ = frozenset()
    lengths = [(1, 40), (1, 70)] + ([] if graphs else [(33, 50)])
    with configured(cache_dtype=cache) as config:
        config.compilation_config.cudagraph_mode = CUDAGraphMode.FULL if graphs else CUDAGraphMode.NONE
        config.compilation_config.max_cudagraph_capture_size = 16
        sinks = torch.zeros(HEADS, dtype=torch.bfloat16, device=DEVICE)
        impl = flashinfer.FlashInferImpl(HEADS, HEAD_DIM, HEAD_DIM**-0.5, KV_HEADS, None, window, cache, sinks=sinks)
        impl.dcp_world_size = 1
        impl.process_weights_after_loading(torch.bfloat16)
        layer: Any = Layer()
        layer.impl = impl
        layer._q_scale_float = layer._k_scale_float = layer._v_scale_float = 1.0  # noqa: SLF001  what a layer has
        config.compilation_config.static_forward_context["layer"] = layer
        spec = FullAttentionSpec(
            block_size=PAGE,
            num_kv_heads=KV_HEADS,
            head_size=HEAD_DIM,
            dtype=torch.bfloat16 if cache == "auto" else torch.uint8,
            kv_quant_mode=get_kv_quant_mode(cache),
        )
        builder = flashinfer.FlashInferMetadataBuilder(spec, ["layer"], config, DEVICE)
        starts = torch.tensor([0] + [new for new, _ in lengths]).cumsum(0).to(torch.int32)
        seq = torch.tensor([length for _, length in lengths], dtype=torch.int32)
        tokens, longest = int(starts[-1]), int(seq.max())
        rows = -(-longest // PAGE)
        metadata = builder.build(
            0,
            CommonAttentionMetadata(
                query_start_loc=starts.to(DEVICE),
                query_start_loc_cpu=starts,
                seq_lens=seq.to(DEVICE),
                _seq_lens_cpu=seq,
                num_reqs=len(lengths),
                num_actual_tokens=tokens,
                max_query_len=max(new for new, _ in lengths),
                max_seq_len=longest,
                block_table_tensor=torch.zeros(len(lengths), rows, dtype=torch.int32, device=DEVICE),
                slot_mapping=torch.zeros(tokens, dtype=torch.int64, device=DEVICE),
            ),
        )
        query = torch.zeros(tokens, HEADS, HEAD_DIM, dtype=torch.bfloat16, device=DEVICE)
        pages = torch.zeros(
            *(len(lengths) * rows, 2, PAGE, KV_HEADS, HEAD_DIM),
            dtype=torch.bfloat16 if cache == "auto" else torch.uint8,
            device=DEVICE,
        )
        impl.forward(layer, query, query[:, :KV_HEADS], query[:, :KV_HEADS], pages, metadata, torch.zeros_like(query))


def moe(*, tuned: bool = False) -> None:
    """A layer's experts: choice of the kernel, weights after loading, one call, and one within FlashInfer's tuning."""
    import vllm.utils.flashinfer as flashinfer_of_vllm  # noqa: PLC0415
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation  # noqa: PLC0415
    from vllm.model_executor.layers.fused_moe.config import (  # noqa: PLC0415
        FusedMoEConfig,
        FusedMoEParallelConfig,
        RoutingMethodType,
    )
    from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4MoEMethod  # noqa: PLC0415
    from vllm.v1.worker.workspace import init_workspace_manager, is_workspace_manager_initialized  # noqa: PLC0415

    with configured() as config:
        if not is_workspace_manager_initialized():
            init_workspace_manager(DEVICE)
        config.compilation_config.max_cudagraph_capture_size = 16
        method: Any = GptOssMxfp4MoEMethod(
            FusedMoEConfig(
                num_experts=EXPERTS,
                experts_per_token=TOP_K,
                hidden_dim=HIDDEN,
                intermediate_size_per_partition=HIDDEN,
                num_local_experts=EXPERTS,
                num_logical_experts=EXPERTS,
                activation=MoEActivation.SWIGLUOAI,
                device=DEVICE,
                routing_method=RoutingMethodType.Renormalize,
                moe_parallel_config=FusedMoEParallelConfig.make_no_parallel(),
                in_dtype=torch.bfloat16,
                has_bias=True,
            )
        )
        layer: Any = torch.nn.Module()
        layer._maybe_init_expert_routing_tables = lambda: None  # noqa: SLF001  what a layer without routing tables says
        layer.shared_experts = None
        layer.activation, layer.global_num_experts, layer.expert_map = MoEActivation.SWIGLUOAI, EXPERTS, None
        layer.apply_router_weight_on_input = False
        with by_default():
            method.create_weights(layer, EXPERTS, HIDDEN, HIDDEN, torch.bfloat16)
        method.process_weights_after_loading(layer)
        x = torch.zeros(3, HIDDEN, dtype=torch.bfloat16, device=DEVICE)
        weights = torch.ones(3, TOP_K, device=DEVICE)
        ids = torch.zeros(3, TOP_K, dtype=torch.int32, device=DEVICE)
        with flashinfer_of_vllm.autotune() if tuned else contextlib.nullcontext():
            method.apply(layer, x, weights, ids, None)


def sampler() -> None:
    """Sampling with top-k, with top-p and with both."""
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler  # noqa: PLC0415

    logits = torch.zeros(2, 256, device=DEVICE)
    top_k = torch.full((2,), 5, dtype=torch.int32, device=DEVICE)
    top_p = torch.full((2,), 0.9, device=DEVICE)
    sample = TopKTopPSampler()
    if sample.forward != sample.forward_cuda:
        msg = "vLLM does not take FlashInfer's sampler"
        raise RuntimeError(msg)
    for k, p in ((top_k, None), (None, top_p), (top_k, top_p)):
        sample(logits, {}, k, p)
