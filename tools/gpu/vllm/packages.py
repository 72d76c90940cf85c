"""Stand-in packages in the group `vllm.decode_kernels`: fakes that count, and the entry point of our real kernels.

    fakes(FOLDER)           dense: Marlin itself; router: torch's arithmetic; both with counters on the device
    real(FOLDER)            sparkforge_kernels.mxfp4_linear_decode, taken from $SPARKFORGE_KERNELS_SITE

    plugin(FOLDER)          a vllm.general_plugins that does to a server's processes what the engines do to their own

A folder on PYTHONPATH that holds a module and a .dist-info with an entry point is an installed package to Python.
"""

from __future__ import annotations

from pathlib import Path

_COMMON = '''
import torch

_CALLED = {}
_RAN = {}


def called():
    return dict(_CALLED)


def ran():
    """Runs on the device, those of replays among them."""
    return {name: int(value.item()) for name, value in _RAN.items()}


def _counted(name, run):
    _CALLED[name] = 0
    _RAN[name] = torch.zeros((), dtype=torch.int64, device="cuda")

    def counted(*args, **kwargs):
        _CALLED[name] += 1
        _RAN[name].add_(1)
        return run(*args, **kwargs)

    return counted
'''

_FAKES = """
def kernels(capability):
    from vllm.model_executor.layers.quantization.utils.marlin_utils import marlin_make_workspace_new
    from vllm.model_executor.layers.quantization.utils.marlin_utils_fp4 import apply_fp4_marlin_linear

    # Made here: an allocation that must start as zeros is not captured.
    workspace = marlin_make_workspace_new(torch.device("cuda"))

    def dense(x, w, w_scale, bias, out):
        assert 1 <= x.shape[0] <= 8 and x.is_contiguous() and out.is_contiguous(), (x.shape, x.stride())
        rows, k = w.shape[1] // 2, 16 * w.shape[0]
        y = apply_fp4_marlin_linear(input=x, weight=w, weight_scale=w_scale, weight_global_scale=None,
                                    workspace=workspace, size_n=rows, size_k=k, bias=bias)
        out.copy_(y[:, : out.shape[1]])

    def router(x, w, bias, out):
        assert 1 <= x.shape[0] <= 8, x.shape
        y = x.float() @ w.float().T
        out.copy_(y if bias is None else y + bias.float())

    return [
        {"kind": "dense", "name": "fake dense", "tokens": (1, 8), "run": _counted("dense", dense), "faster": True},
        {"kind": "router", "name": "fake router", "tokens": (1, 8), "run": _counted("router", router), "faster": True},
    ]
"""

_REAL = """
def kernels(capability):
    import sparkforge_kernels

    if not sparkforge_kernels.supports(tuple(capability)):
        return []
    run = sparkforge_kernels.mxfp4_linear_decode
    most = sparkforge_kernels.MAX_DECODE_TOKENS
    # `faster` stands for a measurement that this proof does not make.
    return [{"kind": "dense", "name": "mxfp4_linear_decode", "tokens": (1, most), "run": _counted("dense", run),
             "faster": True}]
"""


_PLUGIN = """
import os
import sys


def load():
    sys.path.insert(0, os.environ["SPARKFORGE_GPU_TESTS"])
    import atexit

    import bound
    import watch

    atexit.register(bound.tell)
    watch.open_gate()
    api = sys.modules.get("vllm.entrypoints.openai.api_server")
    if api is None or hasattr(api, "_asked_for_type"):
        return
    # The chat of model_type gpt_oss fetches a vocabulary from the network; any other type takes the model's template.
    # Weights are loaded under the true type: the state of the API is made after the engine. The reasoning parser that
    # goes with gpt-oss reads that vocabulary too.
    api._asked_for_type = api.init_app_state

    def init_app_state(engine_client, state, words, *args, **kwargs):
        config = getattr(engine_client, "model_config", None) or engine_client.vllm_config.model_config
        config.hf_config.model_type = "gpt_oss_without_harmony"
        words.structured_outputs_config.reasoning_parser = ""
        return api._asked_for_type(engine_client, state, words, *args, **kwargs)

    api.init_app_state = init_app_state
"""


def plugin(folder: Path) -> Path:
    """The plugin, module `gpu_server_plugin`; it finds `watch` through $SPARKFORGE_GPU_TESTS."""
    return _package(folder, "gpu_server_plugin", _PLUGIN, group="vllm.general_plugins", entry="load", common="")


def _package(
    folder: Path,
    module: str,
    text: str,
    group: str = "vllm.decode_kernels",
    entry: str = "kernels",
    common: str = _COMMON,
) -> Path:
    """Write an installed package of one module; the folder belongs on PYTHONPATH."""
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    folder.joinpath(f"{module}.py").write_text(common + text)
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n")
    info.joinpath("entry_points.txt").write_text(f"[{group}]\n{module} = {module}:{entry}\n")
    return folder


def fakes(folder: Path) -> Path:
    """The fakes, module `gpu_fake_kernels`."""
    return _package(folder, "gpu_fake_kernels", _FAKES)


def real(folder: Path) -> Path:
    """The real kernel behind a counter, module `gpu_real_kernels`."""
    return _package(folder, "gpu_real_kernels", _REAL)
