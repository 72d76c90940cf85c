"""FlashInfer as the intent tests of its patches see it: no GPU, no compiler run, an empty cache."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import subprocess
import tempfile
import types
from collections.abc import Callable
from pathlib import Path

import pytest

# FlashInfer makes its cache directory when it is imported, and reads the architectures there.
_workspace = tempfile.mkdtemp(prefix="flashinfer-")
atexit.register(shutil.rmtree, _workspace, ignore_errors=True)
os.environ["FLASHINFER_WORKSPACE_BASE"] = _workspace
os.environ["FLASHINFER_CUDA_ARCH_LIST"] = "12.1f"
for name in ("FLASHINFER_DISABLE_JIT", "FLASHINFER_MOE_TILE", "FLASHINFER_JIT_VERBOSE"):
    os.environ.pop(name, None)


@pytest.fixture(scope="session")
def package() -> Path:
    """The installed `flashinfer` package; found without importing it."""
    spec = importlib.util.find_spec("flashinfer")
    assert spec is not None, "flashinfer is not installed here"
    assert spec.origin is not None, "flashinfer is no package here"
    return Path(spec.origin).parent


@pytest.fixture(scope="session")
def tree(package: Path) -> Path:
    """The source tree that the package was made from: csrc/, include/ and 3rdparty/ lie in it."""
    named = os.environ.get("SPARKFORGE_TREE_FLASHINFER")
    if named is None:
        pytest.skip("SPARKFORGE_TREE_FLASHINFER names no source tree")
    path = Path(named)
    assert (path / "csrc").is_dir(), f"{path} is no FlashInfer source tree"
    return path


@pytest.fixture
def toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build files for CUDA 13.0 can be written, whether or not that compiler is installed here."""
    from flashinfer.jit import cpp_ext
    from packaging.version import Version

    monkeypatch.setattr(cpp_ext, "get_cuda_path", lambda: "/usr/local/cuda")
    monkeypatch.setattr(cpp_ext, "get_cuda_version", lambda: Version("13.0"))


@pytest.fixture(scope="session")
def host() -> Path:
    """The C++ programs that run FlashInfer's host code."""
    return Path(__file__).parent / "host"


@pytest.fixture(scope="session")
def cut() -> Callable[..., str]:
    """The text of one definition: from the last `start` before `name` to the first `end` after it."""

    def cut_(source: Path, name: str, *, start: str, end: str) -> str:
        text = source.read_text()
        assert text.count(name) == 1, f"{name!r} stands {text.count(name)} times in {source}"
        at = text.index(name)
        return text[text.rindex(start, 0, at + len(name)) : text.index(end, at) + len(end)]

    return cut_


@pytest.fixture(scope="session")
def toolchain() -> Callable[[str], str]:
    """The value of a variable by which `invoke patches.prove` names the hashed CUDA toolchain."""

    def named(name: str) -> str:
        if name not in os.environ:  # no assertion and no skip: without a compiler nothing is proved
            message = f"{name} is not set: run these tests with `invoke patches.prove`"
            raise RuntimeError(message)
        return os.environ[name]

    return named


@pytest.fixture(scope="session")
def compile_host(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles C++ sources for this machine: `compile_host(source, ..., flags=[...]) -> program`."""

    def compile_(*sources: Path, flags: list[str], name: str = "program") -> Path:
        program = tmp_path_factory.mktemp(name) / name
        command = ["g++", "-std=c++17", "-O0", "-w", *flags, *map(str, sources), "-o", str(program)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:  # no assertion: a program that does not compile proves nothing
            message = f"{sources[0]} does not compile: {done.stderr[-6000:]}"
            raise RuntimeError(message)
        return program

    return compile_


@pytest.fixture(scope="session")
def moe_flags(tree: Path, host: Path, toolchain: Callable[[str], str]) -> list[str]:
    """What host code needs of the flags that the SM12x MoE module is compiled with."""
    internal = tree / "csrc/nv_internal"
    kernels = internal / "tensorrt_llm/kernels/cutlass_kernels"
    folders = [
        host / "shim",
        internal,
        internal / "include",
        internal / "tensorrt_llm/cutlass_extensions/include",
        kernels / "include",
        kernels,
        tree / "include",
        tree / "csrc",
        tree / "3rdparty/cutlass/include",
        tree / "3rdparty/cutlass/tools/util/include",
        tree / "3rdparty/spdlog/include",
        *toolchain("SPARKFORGE_CUDA_INCLUDE").split(os.pathsep),
    ]
    defines = [
        "ENABLE_BF16",
        "ENABLE_FP8",
        "ENABLE_FP4",
        "USING_OSS_CUTLASS_MOE_GEMM",
        "COMPILE_BLACKWELL_TMA_GEMMS",
        "COMPILE_BLACKWELL_SM120_TMA_GROUPED_GEMMS",
        "CUTLASS_ARCH_MMA_SM100_SUPPORTED",  # set by nvcc's version, which g++ does not have
        "CUTLASS_ARCH_MMA_SM120_SUPPORTED",
    ]
    return ["-fpermissive", *[f"-D{name}" for name in defines], *[f"-I{folder}" for folder in folders]]


class FakeMoeRunner:
    """The compiled runner's functions, with the tactics of FP8 x FP4 on SM12x; remembers its runs."""

    def __init__(self, tactics: list[tuple[str, bool, bool]]) -> None:
        self.gemm1 = [name for name in tactics if not name[2]]
        self.gemm2 = tactics
        self.profile_ids: list[list[int]] = []

    def get_gemm1_tactic_count(self) -> int:
        return len(self.gemm1)

    def get_gemm2_tactic_count(self) -> int:
        return len(self.gemm2)

    def get_tactic_num(self) -> int:
        return len(self.gemm1) + len(self.gemm2)

    def get_tactic_name(self, tactic: int) -> str:
        tile, swap_ab, finalize = [*self.gemm1, *self.gemm2][tactic]
        return f"{tile} swap_ab={int(swap_ab)} finalize={int(finalize)}"

    def run_moe(self, *args: object) -> None:
        self.profile_ids.append(list(args[-3]))  # type: ignore[call-overload]


class FakeMoe:
    """`cutlass_fused_moe` of the SM12x module, over fakes of the compiled code and of the tuner."""

    def __init__(self, core: object, monkeypatch: pytest.MonkeyPatch, tiles: list[str]) -> None:
        import torch

        self.torch = torch
        self.chosen: list[tuple[str, object, tuple]] = []
        self.tactics = {"trtllm::fused_moe::gemm1": -1, "trtllm::fused_moe::gemm2": -1}
        order = [(False, False), (False, True), (True, False), (True, True)]
        self.compiled = FakeMoeRunner([(tile, swap, final) for swap, final in order for tile in tiles])
        self.inits = 0

        def init(*_: object) -> FakeMoeRunner:
            self.inits += 1
            return self.compiled

        loaded = types.SimpleNamespace(init=init, set_deepgemm_jit_include_dirs=lambda _: None)
        spec = types.SimpleNamespace(build_and_load=lambda: loaded)
        monkeypatch.setattr(core, "gen_cutlass_fused_moe_sm120_module", lambda *_: spec)
        monkeypatch.setattr(core, "AutoTuner", types.SimpleNamespace(get=lambda: self))
        self.op = core.get_cutlass_fused_moe_module.__wrapped__("121").cutlass_fused_moe  # type: ignore[attr-defined]

    def choose_one(self, name: str, runners: list, _config: object, inputs: list, **_: object) -> tuple:
        (runner,) = runners
        self.chosen.append((name, runner, runner.get_cache_key_extras(inputs)))
        return runner, self.tactics[name]

    def run(self, tokens: int = 1, top_k: int = 4, experts: int = 128, **kwargs: object) -> list[int]:
        """Runs the op once; the profile ids that reached the compiled code."""
        torch = self.torch
        kwargs = {"use_mxfp8_act_scaling": True, "enable_pdl": False} | kwargs
        x = torch.zeros(tokens, 128, dtype=torch.float8_e4m3fn)
        self.op(
            torch.zeros(tokens, 128, dtype=torch.bfloat16), x,
            torch.zeros(tokens, top_k, dtype=torch.int32), torch.zeros(tokens, top_k),
            torch.zeros(experts, 256, 8, dtype=torch.int64), None,
            torch.zeros(experts, 128, 8, dtype=torch.int64), None,
            torch.bfloat16, [], **kwargs,
        )  # fmt: skip
        return self.compiled.profile_ids[-1]


@pytest.fixture
def fake_moe(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeMoe]:
    from flashinfer.fused_moe import core

    def make(tiles: list[str] | None = None) -> FakeMoe:
        return FakeMoe(core, monkeypatch, tiles or ["128x128x128"])

    return make
