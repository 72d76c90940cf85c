from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sparkforge.core.errors import BadInput, CheckFailed, EnvironmentLacks
from sparkforge.core.paths import ROOT
from sparkforge.core.platforms import AMD64, ARM64, Platform
from sparkforge.inputs import toolchain
from sparkforge.inputs.toolchain import OWN_NVCC, choose, load_recipe, nvcc_version, own_nvcc, ready, recipe, unpack


def test_the_recipe_holds_every_wheel_for_both_machines():
    pinned = recipe()
    for section in (pinned.compiler, pinned.target, pinned.inspector):
        assert set(section) == {"linux/amd64", "linux/arm64"}
        for oci, wheels in section.items():
            machine = Platform.parse(oci).machine
            assert all(wheel.name.endswith(f"_{machine}.whl") for wheel in wheels)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("nvcc: 13.0.88", "nvcc: 13.2.0", "compiler.linux/amd64"),
        ("tvm_ffi: 0.1.9", "tvm_ffi: 0.1.10", "target.linux/amd64"),
        ("package: nvidia-nvvm", "package: nvidia-nvjitlink", "nvidia-nvvm"),
        ("sha256: 56fe502e", "sha256: 56fe502", "compiler"),
        ("compiler:", "compilers:", "compilers"),
    ],
)
def test_a_recipe_that_contradicts_itself_is_refused(tmp_path, old, new, key):
    text = toolchain.RECIPE.read_text()
    assert old in text
    other = tmp_path / "toolchain.yaml"
    other.write_text(text.replace(old, new, 1))
    with pytest.raises(BadInput) as raised:
        load_recipe(other)
    assert key in raised.value.why


def wheel_of(folder, name, files):
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for inner, (content, mode) in files.items():
            info = zipfile.ZipInfo(inner)
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return path


def test_unpacking_keeps_what_is_executable_and_drops_what_is_not_cuda(tmp_path):
    wheel = wheel_of(
        tmp_path,
        "a.whl",
        {
            "nvidia/cu13/bin/nvcc": ("#!", 0o100744),
            "nvidia/cu13/include/cuda.h": ("//", 0o100644),
            "a-1.dist-info/METADATA": ("Name: a", 0o100644),
            "tvm_ffi/include/tvm/ffi/any.h": ("//", 0o100644),
            "tvm_ffi/core.abi3.so": ("", 0o100755),
        },
    )
    unpack(wheel, tmp_path / "out")
    found = {str(p.relative_to(tmp_path / "out")): p.stat().st_mode & 0o777 for p in (tmp_path / "out").rglob("*.*")}
    assert found == {"include/cuda.h": 0o644, "tvm_ffi/include/tvm/ffi/any.h": 0o644}
    assert (tmp_path / "out" / "bin" / "nvcc").stat().st_mode & 0o777 == 0o755


def test_a_wheel_that_leads_out_of_the_folder(tmp_path):
    wheel = wheel_of(tmp_path, "a.whl", {"nvidia/cu13/../../../etc/passwd": ("", 0o644)})
    with pytest.raises(CheckFailed, match="leads out"):
        unpack(wheel, tmp_path / "out")


def test_two_wheels_with_different_files_of_one_name(tmp_path):
    for name in ("a.whl", "b.whl"):
        wheel = wheel_of(tmp_path, name, {"nvidia/cu13/include/cuda.h": (name, 0o644)})
        if name == "a.whl":
            unpack(wheel, tmp_path / "out")
            unpack(wheel, tmp_path / "out")
    with pytest.raises(CheckFailed, match=r"both hold include/cuda\.h"):
        unpack(wheel, tmp_path / "out")


def machine_with(folder, version, *, whole=True):
    """A CUDA folder whose nvcc names a version: a real program, and all that it can do."""
    nvcc = folder / "bin" / "nvcc"
    for path in (nvcc, folder / "bin" / "ptxas", folder / "nvvm" / "bin" / "cicc"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V{version}'\n")
        path.chmod(0o755)
    if not whole:
        (folder / "nvvm" / "bin" / "cicc").unlink()
    return nvcc


def test_the_machines_nvcc_is_taken_only_if_it_is_the_same_version_and_whole(tmp_path, monkeypatch):
    same = machine_with(tmp_path / "same", "13.0.88")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "same"))
    assert own_nvcc("13.0.88") == same
    monkeypatch.setenv(OWN_NVCC, "0")
    assert own_nvcc("13.0.88") is None
    monkeypatch.delenv(OWN_NVCC)
    for folder, version, whole in (("newer", "13.0.89", True), ("broken", "13.0.88", False)):
        unfit = machine_with(tmp_path / folder, version, whole=whole)
        monkeypatch.setenv("CUDA_HOME", str(tmp_path / folder))
        assert own_nvcc("13.0.88") != unfit


def test_an_nvcc_that_names_no_version(tmp_path):
    silent = tmp_path / "nvcc"
    silent.write_text("#!/bin/sh\nexit 1\n")
    silent.chmod(0o755)
    assert nvcc_version(silent) == ""


def test_a_missing_cross_compiler_is_said_with_its_package():
    with pytest.raises(EnvironmentLacks) as raised:
        toolchain._host_compiler("riscv64-linux-gnu-g++")
    assert "apt-get install g++-riscv64-linux-gnu" in raised.value.do


def test_the_target_is_part_of_the_identity():
    if not shutil.which(f"{(ARM64 if Platform.host() == AMD64 else AMD64).triple}-g++"):
        pytest.skip("no cross compiler")
    assert choose(AMD64).identity != choose(ARM64).identity


@pytest.mark.nvcc
@pytest.mark.online
def test_a_wheel_that_is_not_the_pinned_content_is_refused_and_nothing_is_laid_out(fresh, tmp_path, monkeypatch):
    (fresh.root / "toolchain").unlink(missing_ok=True)
    wanted = recipe().inspector["linux/amd64"]
    forged = recipe().__class__(
        **{name: getattr(recipe(), name) for name in ("nvcc", "tvm_ffi", "compiler", "target", "modules")},
        inspector={"linux/amd64": (toolchain.ToolWheel(wanted[0].package, wanted[0].name, "0" * 64),)},
    )
    monkeypatch.setattr(toolchain, "recipe", lambda: forged)
    with pytest.raises(CheckFailed) as raised:
        toolchain.inspector(fresh, host=AMD64)
    assert wanted[0].name in raised.value.what
    assert wanted[0].sha256 in raised.value.why
    assert "0" * 64 in raised.value.why
    assert "toolchain.yaml" in raised.value.why
    assert not list(fresh.root.glob("toolchain/*"))


_BUILD = """
import shutil
from sparkforge.core.arch import parse_archs
from sparkforge.kernels.library import build
from sparkforge.inputs.kernel_list import load_kernels
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store
from sparkforge.inputs.toolchain import choose
assert choose(Platform.host()).own_nvcc is None
print(build(Store.open(), load_kernels(), parse_archs("12.1f"), Platform.host()).sha256)
"""


@pytest.mark.nvcc
@pytest.mark.online
@pytest.mark.slow
def test_the_wheels_compile_on_a_machine_without_cuda(fresh, tools, monkeypatch):
    """What the machine has at /usr/local is covered by an empty folder, in a mount namespace of its own."""
    monkeypatch.setenv(OWN_NVCC, "0")
    ready(fresh, choose(Platform.host()))
    monkeypatch.delenv(OWN_NVCC)
    installed = [str(path) for path in Path("/usr/local").glob("cuda*") if path.is_dir() and not path.is_symlink()]
    hide = "".join(f"mount -t tmpfs none {path} && " for path in installed)
    unshare = ["unshare", "--mount", "--map-root-user"] if installed else []
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mount namespaces here: the wheels' nvcc was NOT tried with the machine's hidden")
    path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if not (Path(p) / "nvcc").exists())
    environment = {**os.environ, "PATH": path, "SPARKFORGE_STORE": str(fresh.root), "PYTHONPATH": str(ROOT)}
    environment.pop("CUDA_HOME", None)
    command = [*unshare, "sh", "-c", f'{hide}exec "$0" -c "$1"', sys.executable, _BUILD]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) == 64
