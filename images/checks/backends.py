"""What the vLLM installed beside this Python would choose for gpt-oss-120b, for each flag, on a device not here.

    python backends.py --capability 12.1 --json

The package's own selection is asked, with its platform saying that it is a CUDA device of that capability. No weight
is loaded and no kernel runs. FlashInfer's kernels are taken as compilable (`--as-installed` asks whether they are),
Triton's as usable; a CPU build has no FLASH_ATTN. Exit status: 0, or 2 for a capability that cannot be read.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

KERNELS = ("auto", "gemm", "marlin", "triton")
ACTIVATIONS = ("auto", "bf16", "mxfp8")
MOE_BACKENDS = ("marlin", "triton", "flashinfer_cutlass", "flashinfer_cutlass_afp8", "flashinfer_trtllm_afp8")
ATTENTION = ("auto", "FLASHINFER", "TRITON_ATTN", "FLASH_ATTN")
SWITCHES = (
    "VLLM_MXFP4_MOE_KERNEL",
    "VLLM_MXFP4_ACTIVATION",
    "VLLM_MXFP4_DECODE_KERNELS",
    "VLLM_ATTENTION_SINKS",
)


def pretend(major: int, minor: int, *, as_installed: bool) -> None:
    """Make the platform say that it is a CUDA device of that capability."""
    # Some modules ask compiled code about the device while they are imported: they are imported before.
    import vllm.model_executor.layers.quantization.mxfp4  # noqa: F401, PLC0415  for its effect
    from vllm.model_executor.layers.fused_moe.experts import (  # noqa: PLC0415  as above
        flashinfer_cutlass_moe,
        gpt_oss_triton_kernels_moe,
        trtllm_mxfp4_moe,
    )
    from vllm.platforms import current_platform  # noqa: PLC0415
    from vllm.platforms.interface import DeviceCapability, PlatformEnum  # noqa: PLC0415
    from vllm.utils import flashinfer_tuning  # noqa: PLC0415

    kind: Any = type(current_platform)
    kind._enum = PlatformEnum.CUDA  # noqa: SLF001  what every is_cuda() reads
    kind.device_name = f"a device of compute capability {major}.{minor}"
    kind.get_device_capability = classmethod(lambda *_, **__: DeviceCapability(major, minor))
    if not as_installed:
        flashinfer_cutlass_moe.has_flashinfer_cutlass_fused_moe = lambda: True
        trtllm_mxfp4_moe.has_flashinfer = lambda: True
        flashinfer_tuning.has_flashinfer = lambda: True
    gpt_oss_triton_kernels_moe.has_triton_kernels = lambda: True


@contextmanager
def switched(**values: str) -> Iterator[None]:
    """These switches set, all others of ours at their defaults."""
    before = {name: os.environ.pop(name, None) for name in SWITCHES}
    os.environ.update({name: value for name, value in values.items() if value != "auto"})
    _forget_kernels()
    try:
        yield
    finally:
        for name in SWITCHES:
            os.environ.pop(name, None)
        os.environ.update({name: value for name, value in before.items() if value is not None})


def _forget_kernels() -> None:
    from vllm.utils import decode_kernels  # noqa: PLC0415

    decode_kernels._registry.cache_clear()  # noqa: SLF001  it is read once a process
    decode_kernels.decode_kernel.cache_clear()


def _moe(kernel: str, activation: str, backend: str) -> dict[str, Any]:
    import torch  # noqa: PLC0415
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation  # noqa: PLC0415
    from vllm.model_executor.layers.fused_moe.config import (  # noqa: PLC0415
        FusedMoEConfig,
        FusedMoEParallelConfig,
        RoutingMethodType,
    )
    from vllm.model_executor.layers.fused_moe.experts.mxfp4_decode import with_decode_kernels  # noqa: PLC0415
    from vllm.model_executor.layers.fused_moe.oracle.mxfp4 import select_mxfp4_moe_backend  # noqa: PLC0415
    from vllm.utils.mxfp4_switches import why_taken  # noqa: PLC0415

    config = FusedMoEConfig(
        num_experts=128,
        experts_per_token=4,
        hidden_dim=2880,
        intermediate_size_per_partition=2880,
        num_local_experts=128,
        num_logical_experts=128,
        activation=MoEActivation.SWIGLUOAI,
        device="cpu",
        routing_method=RoutingMethodType.Renormalize,
        moe_parallel_config=FusedMoEParallelConfig.make_no_parallel(),
        in_dtype=torch.bfloat16,
        has_bias=True,
        moe_backend=backend,  # type: ignore[arg-type]
    )
    flags = {"VLLM_MXFP4_MOE_KERNEL": kernel, "VLLM_MXFP4_ACTIVATION": activation, "--moe-backend": backend}
    with switched(VLLM_MXFP4_MOE_KERNEL=kernel, VLLM_MXFP4_ACTIVATION=activation):
        try:
            taken, experts = select_mxfp4_moe_backend(config)
            experts = with_decode_kernels(experts, taken.value, config)
        except (ValueError, NotImplementedError) as refusal:
            return {"what": "moe", "flags": flags, "chosen": "refused", "why": str(refusal)}
        return {
            "what": "moe",
            "flags": flags,
            "chosen": taken.value,
            "why": why_taken(backend, {}),
            "experts": experts.__name__ if experts else "",
        }


def _attention(backend: str, cache: str, sinks: str, capability: tuple[int, int]) -> dict[str, Any]:
    import torch  # noqa: PLC0415
    from vllm.config import VllmConfig, set_current_vllm_config  # noqa: PLC0415
    from vllm.config.device import DeviceConfig  # noqa: PLC0415
    from vllm.model_executor.layers.attention.sinks import drop_unwanted_sinks  # noqa: PLC0415
    from vllm.platforms.interface import DeviceCapability  # noqa: PLC0415
    from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: PLC0415
    from vllm.v1.attention.selector import AttentionSelectorConfig  # noqa: PLC0415

    # The CPU build lacks one of the compiled modules that the platform's module loads for their operators, and has the
    # other for processors with AVX-512 alone; nothing of either is called here.
    lacking = "vllm._C_stable_libtorch"
    if lacking not in sys.modules and importlib.util.find_spec(lacking) is None:
        for name in (lacking, "vllm._C"):
            sys.modules.setdefault(name, types.ModuleType(name))
    from vllm.platforms.cuda import CudaPlatformBase  # noqa: PLC0415

    class Device(CudaPlatformBase):  # type: ignore[misc]
        device_name = "the device"
        get_device_capability = classmethod(lambda *_, **__: DeviceCapability(*capability))

    flags = {"--attention-backend": backend, "--kv-cache-dtype": cache, "VLLM_ATTENTION_SINKS": sinks}
    with (
        switched(VLLM_ATTENTION_SINKS=sinks),
        set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))),
    ):
        layer = {"sinks": torch.zeros(64)}
        drop_unwanted_sinks(layer)
        ask = AttentionSelectorConfig(64, torch.bfloat16, cache, None, has_sink=layer["sinks"] is not None)  # type: ignore[arg-type]
        try:
            named = None if backend == "auto" else AttentionBackendEnum[backend]
            path = Device.get_attn_backend_cls(named, ask, 64)
        except ValueError as refusal:
            return {"what": "attention", "flags": flags, "chosen": "refused", "why": str(refusal)}
        chosen = next(entry.name for entry in AttentionBackendEnum if entry.value and entry.get_path() == path)
        _, passed_over = Device.get_valid_backends(DeviceCapability(*capability), ask, 64)
    if backend != "auto":
        return {"what": "attention", "flags": flags, "chosen": chosen, "why": f"asked for by {backend}"}
    why = "; ".join(f"{entry.name}: {', '.join(reasons)}" for entry, (_, reasons) in passed_over.items())
    return {"what": "attention", "flags": flags, "chosen": chosen, "why": f"passed over: {why}" if why else "first"}


def _dense() -> Iterator[dict[str, Any]]:
    from vllm.model_executor.layers.quantization.online.mxfp4 import has_marlin, marlin_rows  # noqa: PLC0415
    from vllm.utils.decode_kernels import decode_kernels  # noqa: PLC0415
    from vllm.utils.mxfp4_layers import MXFP4_LAYERS, parse_mxfp4_layers  # noqa: PLC0415

    shapes = {"qkv": (5120, 2880), "o": (2880, 4096), "lm_head": (201088, 2880)}
    for text in ("moe", "moe,qkv,o", "all", "moe,router"):
        flags = {"--mxfp4-layers": text}
        try:
            held = parse_mxfp4_layers(text)
        except ValueError as refusal:
            yield {"what": "dense", "flags": flags, "chosen": "refused", "why": str(refusal)}
            continue
        with switched():
            few = " and decode kernels for few tokens" if decode_kernels("dense") else ""
        by = f"Marlin{few}" if has_marlin() else "BF16 with MXFP4 values"
        chosen = {name: by if name in held and marlin_rows(*shapes[name]) else "BF16" for name in MXFP4_LAYERS[1:]}
        yield {"what": "dense", "flags": flags, "chosen": chosen, "why": "quantized at load" if held[1:] else "default"}


def _defaults() -> Iterator[dict[str, Any]]:
    from vllm.config import CompilationConfig  # noqa: PLC0415
    from vllm.model_executor.models.config import GptOssForCausalLMConfig  # noqa: PLC0415
    from vllm.utils.flashinfer_tuning import tunes_by_default  # noqa: PLC0415

    for kernel in KERNELS:
        compilation = CompilationConfig()
        config: Any = types.SimpleNamespace(
            structured_outputs_config=types.SimpleNamespace(reasoning_parser=""),
            compilation_config=compilation,
            model_config=types.SimpleNamespace(quantization="gpt_oss_mxfp4", enforce_eager=False),
            kernel_config=types.SimpleNamespace(moe_backend="auto"),
            parallel_config=types.SimpleNamespace(data_parallel_size=1),
            lora_config=None,
        )
        flags = {"VLLM_MXFP4_MOE_KERNEL": kernel}
        with switched(**flags):
            try:
                tuned = tunes_by_default(config)
                GptOssForCausalLMConfig.verify_and_update_config(config)
            except ValueError as refusal:
                yield {"what": "start", "flags": flags, "chosen": "refused", "why": str(refusal)}
                continue
        mode, sizes = compilation.cudagraph_mode, compilation.cudagraph_capture_sizes
        graphs = (
            f"up to {compilation.max_cudagraph_capture_size}" if mode is None and sizes is None else sizes or "none"
        )
        yield {"what": "start", "flags": flags, "chosen": {"tuned": tuned, "captured": graphs}, "why": "default"}


def table(major: int, minor: int) -> list[dict[str, Any]]:
    """One row for each choice: what it is of, the flags, what is chosen, and why."""
    rows = [_moe(kernel, activation, "auto") for kernel in KERNELS for activation in ACTIVATIONS]
    rows += [_moe("auto", "auto", backend) for backend in MOE_BACKENDS]
    for sinks in ("auto", "false"):
        for cache in ("auto", "fp8"):
            rows += [_attention(backend, cache, sinks, (major, minor)) for backend in ATTENTION]
    return [*rows, *_dense(), *_defaults()]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capability", default="12.1", help="compute capability, such as 12.1")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument("--as-installed", action="store_true", help="ask whether FlashInfer can be compiled here")
    words = parser.parse_args()
    try:
        major, minor = (int(part) for part in words.capability.split("."))
    except ValueError:
        print(f"--capability {words.capability}: write it as 12.1", file=sys.stderr)
        return 2
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    pretend(major, minor, as_installed=words.as_installed)
    rows = table(major, minor)
    if words.json:
        assumed = ["Triton can be used"] + ([] if words.as_installed else ["FlashInfer can be compiled"])
        print(json.dumps({"capability": words.capability, "assumed": assumed, "rows": rows}, indent=2))
        return 0
    for row in rows:
        flags = " ".join(f"{name}={value}" for name, value in row["flags"].items() if value != "auto") or "(defaults)"
        print(f"{row['what']:9} {flags}\n          -> {row['chosen']}: {row['why']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
