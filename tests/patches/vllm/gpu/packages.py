"""Stand-in packages in the group `vllm.decode_kernels`: fakes that count, and the entry point of our real kernels.

    fakes(FOLDER)           dense, router: torch's own arithmetic on the plain layout, with counters on the device
    real(FOLDER)            sparkforge_kernels.mxfp4_linear_decode, taken from $SPARKFORGE_KERNELS_SITE

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
    magnitudes = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    # Made here: a copy from the host is not allowed while a graph is captured.
    values = torch.tensor((*magnitudes, *(-v for v in magnitudes)), dtype=torch.float32, device="cuda")

    def dense(x, w, w_scale, bias, out):
        assert 1 <= x.shape[0] <= 8 and x.is_contiguous() and out.is_contiguous(), (x.shape, x.stride())
        code = torch.stack((w & 0xF, w >> 4), dim=-1).flatten(-2).int()
        blocks = values[code].unflatten(-1, (-1, 32))
        weight = torch.ldexp(blocks, (w_scale.int() - 127).unsqueeze(-1)).flatten(-2)
        y = x.float() @ weight.T
        out.copy_(y if bias is None else y + bias.float())

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


def _package(folder: Path, module: str, text: str) -> Path:
    """Write an installed package of one module; the folder belongs on PYTHONPATH."""
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    folder.joinpath(f"{module}.py").write_text(_COMMON + text)
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n")
    info.joinpath("entry_points.txt").write_text(f"[vllm.decode_kernels]\n{module} = {module}:kernels\n")
    return folder


def fakes(folder: Path) -> Path:
    """The fakes, module `gpu_fake_kernels`."""
    return _package(folder, "gpu_fake_kernels", _FAKES)


def real(folder: Path) -> Path:
    """The real kernel behind a counter, module `gpu_real_kernels`."""
    return _package(folder, "gpu_real_kernels", _REAL)
