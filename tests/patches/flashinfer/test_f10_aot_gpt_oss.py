"""F-10: every module that gpt-oss on SM12x asks for is in the list that is compiled ahead of time."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


class Asked(Exception):
    """Stops a getter where it would load its module."""


def the_list():
    assert importlib.util.find_spec("flashinfer.aot_gpt_oss") is not None, "no such list"
    return importlib.import_module("flashinfer.aot_gpt_oss")


@pytest.fixture
def sources(monkeypatch, package, tree, tmp_path, toolkit):
    """The sources of the tree where the package holds none, and nothing written outside of the test."""
    from flashinfer.jit import env

    if not (package / "data/csrc").is_dir():
        monkeypatch.setattr(env, "FLASHINFER_CSRC_DIR", tree / "csrc")
    monkeypatch.setattr(env, "FLASHINFER_GEN_SRC_DIR", tmp_path / "generated")
    monkeypatch.setattr(env, "FLASHINFER_JIT_DIR", tmp_path / "ops")


@pytest.fixture
def asked_for(monkeypatch):
    """The name of the module that a call loads first."""
    from flashinfer.jit.core import JitSpec

    def stop(self):
        raise Asked(self.name)

    monkeypatch.setattr(JitSpec, "build_and_load", stop)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (12, 1))

    def ask(call) -> str:
        try:
            call()
        except Asked as asked:
            return asked.args[0]
        raise AssertionError("no module was asked for")

    return ask


def attention(kv_dtype, window):
    from flashinfer.sinks import get_batch_prefill_attention_sink_module

    get_batch_prefill_attention_sink_module.__wrapped__(
        "fa2", BF16, kv_dtype, BF16, torch.int32, 64, 64, 0, window >= 0
    )


def prefill(kv_dtype, window):
    from flashinfer import BatchAttentionWithAttentionSinkWrapper

    BatchAttentionWithAttentionSinkWrapper(
        torch.empty(16), backend="fa2", q_data_type=BF16, kv_data_type=kv_dtype, head_dim_qk=64, head_dim_vo=64,
        window_left=window,
    )  # fmt: skip


def uncached(module: str, name: str, *args):
    return lambda: getattr(importlib.import_module(module), name).__wrapped__(*args)


def test_what_serving_asks_for_is_in_the_list(sources, asked_for):
    aot = the_list()
    needs = {
        "the MoE": uncached("flashinfer.fused_moe.core", "get_cutlass_fused_moe_module", "121"),
        "its activations": uncached("flashinfer.quantization.fp8_quantization", "get_mxfp8_quantization_sm100_module"),
        "its scales": uncached("flashinfer.quantization.fp4_quantization", "get_fp4_quantization_module", "121"),
        "the tuner": uncached("flashinfer.tllm_utils", "get_trtllm_utils_module"),
        "sampling": uncached("flashinfer.sampling", "get_sampling_module"),
    }
    for kv_dtype in (BF16, FP8):
        for window in (-1, 127):
            needs[f"decode, {kv_dtype}, {window}"] = lambda k=kv_dtype, w=window: attention(k, w)
            needs[f"prefill, {kv_dtype}, {window}"] = lambda k=kv_dtype, w=window: prefill(k, w)
    names = [spec.name for spec in aot.gen_modules()]
    for what, call in needs.items():
        assert asked_for(call) in names, f"{what} would be compiled when the server starts"
    assert len(names) == len(set(names)) == 9


def test_every_module_has_code_for_sm121(sources):
    aot = the_list()
    for spec in aot.gen_modules():
        archs = [flag for flag in spec.extra_cuda_cflags if flag.startswith("-gencode")]
        assert all("121" in flag or "120f" in flag for flag in archs), f"{spec.name}: {archs}"
        assert all(source.is_file() for source in spec.sources), f"{spec.name} has a source that is not there"


def test_no_hopper_kernel_is_compiled(sources):
    aot = the_list()
    moe = next(spec for spec in aot.gen_modules() if spec.name == "fused_moe_120")
    folders = {"/".join(source.parts[-3:-1]) for source in moe.sources}
    assert "gemm/90" not in folders
    assert {"gemm_grouped/120", "gemm_grouped/80", "cutlass_kernels/moe_gemm"} <= folders


def test_what_is_optional_is_left_out_unless_asked_for(sources):
    aot = the_list()
    plain = {spec.name for spec in aot.gen_modules()}
    more = {spec.name for spec in aot.gen_modules(draft_layers=True, xqa_page_sizes=[16])}
    assert plain < more
    added = more - plain
    assert len([name for name in added if name.startswith("xqa_")]) == 4
    assert len([name for name in added if name.startswith("batch_prefill_with_kv_cache_")]) == 4


@pytest.mark.parametrize("archs", ["9.0a", "12.1f 9.0a"])
def test_other_architectures_are_refused(sources, monkeypatch, archs):
    aot = the_list()
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", archs)
    try:
        aot.gen_modules()
    except ValueError as error:
        assert "SM12x" in str(error)
    else:
        raise AssertionError(f"modules of SM12x were made for {archs}")


def test_libraries_land_where_the_package_looks(sources, monkeypatch, tmp_path):
    aot = the_list()
    spec = SimpleNamespace(name="probe", jit_library_path=tmp_path / "ops/probe.so")
    spec.jit_library_path.parent.mkdir()
    spec.jit_library_path.write_bytes(b"library")
    monkeypatch.setattr(aot, "build_jit_specs", lambda *_, **__: None)
    for _ in range(2):
        aot.compile_modules([spec], tmp_path / "aot", verbose=False)
    made = [p.relative_to(tmp_path) for p in (tmp_path / "aot").rglob("*") if p.is_file()]
    assert made == [Path("aot/probe/probe.so")]
    assert (tmp_path / "aot/probe/probe.so").read_bytes() == b"library"


def test_the_list_prints_without_a_gpu(package, tmp_path):
    the_list()
    if not (package / "data/csrc").is_dir():
        pytest.skip("the package holds no sources here")
    env = os.environ | {"FLASHINFER_CUDA_ARCH_LIST": "12.1f", "FLASHINFER_WORKSPACE_BASE": str(tmp_path)}
    command = [sys.executable, "-m", "flashinfer.aot_gpt_oss", "--list"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "fused_moe_120" in done.stdout.split()
