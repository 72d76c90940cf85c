"""Headers and stubs are those of the libraries that an image has; a compiler's cost is measured."""

from __future__ import annotations

import os
import sys

import pytest

from sparkforge.aot import tools
from sparkforge.core import proc
from sparkforge.core.errors import CheckFailed, EnvironmentLacks
from sparkforge.core.paths import ROOT
from sparkforge.core.platforms import Platform
from sparkforge.inputs import toolchain
from sparkforge.inputs.recipes import load_stack
from sparkforge.inputs.wheelhouse import read_lock
from sparkforge.inspect.elf import read_elf


@pytest.mark.parametrize("oci", ["linux/amd64", "linux/arm64"])
def test_the_headers_are_of_the_versions_that_an_image_has(oci):
    stack, wheels = load_stack(), toolchain.recipe().modules[oci]
    assert {wheel.package for wheel in wheels} == {"nvidia-cublas", "nvidia-cuda-nvrtc", "nvidia-curand"}
    for base in stack.bases.values():
        lock = ROOT / stack.lock("serve", Platform.parse(oci), base.python)
        locked = {line.package: line for line in read_lock(lock)}
        for wheel in wheels:
            assert wheel.sha256 in locked[wheel.package].hashes, f"{wheel.name} is not what {lock.name} installs"
        assert locked["apache-tvm-ffi"].version == toolchain.recipe().tvm_ffi


def test_the_toolchain_holds_what_the_modules_include_and_link(shared, platform):
    ready = tools.ready(shared, platform)
    for header in ("cublasLt.h", "cublas_v2.h", "curand_kernel.h", "nvrtc.h"):
        assert (ready.more / "include" / header).is_file()
    nvrtc, cuda = (read_elf(ready.more / "lib" / name) for name in ("libnvrtc.so", "libcuda.so"))
    assert (nvrtc.machine, cuda.machine) == (platform.elf_machine, platform.elf_machine)
    assert "nvrtcCompileProgram" in nvrtc.exports
    assert "cuTensorMapEncodeTiled" in cuda.exports
    assert (ready.more / "lib" / "libcudart.so").resolve().name.startswith("libcudart.so.13")


def test_another_wheel_is_another_toolchain(monkeypatch):
    chosen = toolchain.choose(Platform.host())
    before = tools.identity(chosen)
    assert before != chosen.identity
    monkeypatch.setattr(tools, "_wheels", lambda chosen: chosen.recipe.modules["linux/amd64"][1:])
    assert tools.identity(chosen) != before


def test_a_command_is_measured(tmp_path):
    busy = "x = bytearray(200 << 20); import time; t = time.process_time()\nwhile time.process_time() - t < 0.3: pass"
    used = proc.measured([sys.executable, "-c", busy], cwd=tmp_path, env=os.environ)
    assert 0.3 <= used.cpu_seconds < 60
    assert used.peak_bytes > 200 << 20
    nested = proc.measured(["sh", "-c", f"{sys.executable} -c '{busy}'; true"], cwd=tmp_path, env=os.environ)
    assert nested.cpu_seconds >= 0.3
    assert nested.peak_bytes > 200 << 20


def test_a_measured_command_that_fails_says_why(tmp_path):
    with pytest.raises(CheckFailed, match="ended with status 3") as failed:
        proc.measured(["sh", "-c", "echo out; echo the reason >&2; exit 3"], cwd=tmp_path, env=os.environ)
    assert "the reason" in failed.value.why
    with pytest.raises(CheckFailed, match="killed by signal 9"):
        proc.measured(["sh", "-c", "kill -9 $$"], cwd=tmp_path, env=os.environ)
    with pytest.raises(EnvironmentLacks, match="not installed"):
        proc.measured(["no-such-compiler"], cwd=tmp_path, env=os.environ)
