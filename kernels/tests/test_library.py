"""The compiled library through TVM-FFI on a machine without a GPU: it loads, and refuses what it must by name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest

from sparkforge.core.arch import parse_archs
from sparkforge.core.errors import EnvironmentLacks
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store
from sparkforge.inputs.fetch import fetch
from sparkforge.inputs.kernel_list import load_kernels
from sparkforge.inputs.recipes import File
from sparkforge.inputs.toolchain import recipe
from sparkforge.kernels.library import build

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]

# The oldest TVM-FFI that the library must load with is the one that it is compiled against. The recipe pins its wheel
# for headers; this one is for a Python that cannot use that (3.11).
FOR_311 = File(
    "apache_tvm_ffi-0.1.9-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    "6f16d73a82a9e68a439b7d233d48b1b929be17fe92df4bbf1ee2274e573144a3",
)
M, N, K = 4, 64, 128
GROUP = "vllm.decode_kernels"


@pytest.fixture(scope="module")
def built():
    try:
        return build(Store.open(), load_kernels(), parse_archs("12.1f"), Platform.host())
    except EnvironmentLacks as lacking:
        pytest.skip(f"the library was NOT built: {lacking}")


@pytest.fixture(scope="module")
def kernels(built, tmp_path_factory):
    site = tmp_path_factory.mktemp("site") / "packages"  # a copy: Python writes bytecode beside what it imports
    shutil.copytree(built.folder, site)
    sys.path.insert(0, str(site))
    try:
        import sparkforge_kernels  # noqa: PLC0415  it is there only now

        yield sparkforge_kernels
    finally:
        sys.path.remove(str(site))
        for name in [name for name in sys.modules if name.startswith("sparkforge_kernels")]:
            del sys.modules[name]


def test_vllm_finds_the_kernel_by_its_entry_point(kernels):
    site = str(Path(kernels.__file__).parent.parent)
    (point,) = (one for found in distributions(path=[site]) for one in found.entry_points.select(group=GROUP))
    offered = point.load()
    (kernel,) = offered((12, 1))
    assert (kernel["kind"], kernel["tokens"]) == ("dense", (1, kernels.MAX_DECODE_TOKENS))
    assert kernel["run"] is kernels.marlin_linear_decode
    assert kernel["faster"] is False, "no run on a GB10 has shown it"
    assert offered((9, 0)) == [], "there is no code for it in this build"


@pytest.fixture(scope="module")
def fake(load):
    return load("fake_tensor")


@pytest.fixture
def right(fake):
    return {
        "x": fake.Fake("bf16", (M, K)),
        "w": fake.Fake("u8", (N, K // 2)),
        "w_scale": fake.Fake("u8", (N, K // 32)),
        "bias": fake.Fake("bf16", (N,)),
        "out": fake.Fake("bf16", (M, N)),
    }


def test_it_says_what_it_was_built_for(kernels, built):
    assert kernels.archs() == ("12.1f",)
    assert kernels.build_facts()["sha256"] == built.sha256


@pytest.mark.parametrize(
    ("archs", "capability", "expected"),
    [
        (["12.1f"], (12, 1), True),
        (["12.1f"], (12, 3), True),
        (["12.1f"], (12, 0), False),
        (["12.1f"], (10, 0), False),
        (["12.1a"], (12, 1), True),
        (["12.1a"], (12, 3), False),
        (["9.0"], (9, 0), True),
        (["9.0", "12.1f"], (12, 1), True),
        (["9.0"], (12, 1), False),
    ],
)
def test_which_devices_it_supports(kernels, monkeypatch, archs, capability, expected):
    library = sys.modules["sparkforge_kernels.library"]
    monkeypatch.setattr(library, "build_facts", lambda: {"archs": archs})
    assert library.supports(capability) is expected


WRONG = [
    ("x is float16, wanted bfloat16", TypeError, lambda f: {"x": f("f16", (M, K))}),
    ("w is int8, wanted uint8", TypeError, lambda f: {"w": f("i8", (N, K // 2))}),
    ("w_scale is float32, wanted uint8", TypeError, lambda f: {"w_scale": f("f32", (N, K // 32))}),
    ("bias is float32, wanted bfloat16", TypeError, lambda f: {"bias": f("f32", (N,))}),
    ("out is float64, wanted bfloat16", TypeError, lambda f: {"out": f("f64", (M, N))}),
    ("x has shape [512], wanted 2 dimensions", ValueError, lambda f: {"x": f("bf16", (M * K,))}),
    ("x has 0 rows", ValueError, lambda f: {"x": f("bf16", (0, K))}),
    ("x has 9 rows, this kernel takes 1 to 8", ValueError, lambda f: {"x": f("bf16", (9, K))}),
    ("x has K = 0", ValueError, lambda f: {"x": f("bf16", (M, 0))}),
    ("x has K = 48, wanted a multiple of 32", ValueError, lambda f: {"x": f("bf16", (M, 48))}),
    ("w has N = 0", ValueError, lambda f: {"w": f("u8", (0, K // 2))}),
    ("w has shape [64, 63], wanted [64, 64] ([N, K/2]", ValueError, lambda f: {"w": f("u8", (N, 63))}),
    ("w_scale has shape [64, 3], wanted [64, 4]", ValueError, lambda f: {"w_scale": f("u8", (N, 3))}),
    ("w_scale has shape [63, 4]", ValueError, lambda f: {"w_scale": f("u8", (N - 1, 4))}),
    ("bias has shape [63], wanted [64]", ValueError, lambda f: {"bias": f("bf16", (N - 1,))}),
    ("bias has shape [1, 64], wanted 1 dimension", ValueError, lambda f: {"bias": f("bf16", (1, N))}),
    ("out has shape [64, 4], wanted [4, 64]", ValueError, lambda f: {"out": f("bf16", (N, M))}),
    ("x is not contiguous", ValueError, lambda f: {"x": f("bf16", (M, K), strides=[2 * K, 1])}),
    ("w is not contiguous", ValueError, lambda f: {"w": f("u8", (N, K // 2), strides=[1, N])}),
    ("w_scale is not contiguous", ValueError, lambda f: {"w_scale": f("u8", (N, 4), strides=[1, N])}),
    ("out is not contiguous", ValueError, lambda f: {"out": f("bf16", (M, N), strides=[1, M])}),
    ("x is not on a CUDA device", ValueError, lambda f: {"x": f("bf16", (M, K), device=(1, 0))}),
    ("w is not on a CUDA device", ValueError, lambda f: {"w": f("u8", (N, K // 2), device=(1, 0))}),
    ("bias is not on a CUDA device", ValueError, lambda f: {"bias": f("bf16", (N,), device=(1, 0))}),
    ("w_scale is on cuda:1, x on cuda:0", ValueError, lambda f: {"w_scale": f("u8", (N, 4), device=(2, 1))}),
    ("out is on cuda:3, x on cuda:0", ValueError, lambda f: {"out": f("bf16", (M, N), device=(2, 3))}),
    ("x is not aligned to 16 bytes", ValueError, lambda f: {"x": f("bf16", (M, K), offset=2)}),
    ("w is not aligned to 16 bytes", ValueError, lambda f: {"w": f("u8", (N, K // 2), offset=8)}),
    ("out is not aligned to 2 bytes", ValueError, lambda f: {"out": f("bf16", (M, N), offset=1)}),
    ("bias is not aligned to 2 bytes", ValueError, lambda f: {"bias": f("bf16", (N,), offset=1)}),
]


@pytest.mark.parametrize("wrong", WRONG, ids=[says for says, _, _ in WRONG])
def test_a_wrong_argument_is_refused_by_name(kernels, fake, right, wrong):
    says, error, change = wrong
    with pytest.raises(error) as raised:
        kernels.mxfp4_linear_decode(**(right | change(fake.Fake)))
    assert says in str(raised.value)


MARLIN = {
    "w": ("i32", (K // 16, 2 * N)),
    "w_scale": ("u8", (K // 32, N)),
    "bias": ("bf16", (N,)),
}
PACKED = {"w": ("u8", (N // 16, K // 64, 544)), "w_scale": None, "bias": ("bf16", (N,))}
OF_LAYOUTS = [
    ("w is uint8, wanted int32", TypeError, "marlin", {"w": ("u8", (K // 16, 2 * N))}),
    ("w has shape [4, 128], wanted [8, 128]", ValueError, "marlin", {"w": ("i32", (4, 2 * N))}),
    ("w holds 63 rows, wanted 64 padded to a multiple of 64", ValueError, "marlin", {"w": ("i32", (8, 126))}),
    ("w holds 448 rows, wanted 64", ValueError, "marlin", {"w": ("i32", (8, 896))}),
    ("w_scale has shape [64, 4], wanted [4, 64]", ValueError, "marlin", {"w_scale": ("u8", (N, 4))}),
    ("w_scale is None, which only a packed w may have", ValueError, "marlin", {"w_scale": None}),
    ("w_scale is given, but a packed w holds its scales", ValueError, "packed", {"w_scale": ("u8", (N, 4))}),
    ("w has shape [4, 2, 512], wanted [4, 2, 544]", ValueError, "packed", {"w": ("u8", (4, 2, 512))}),
    ("layout is 'columns', wanted one of rows, marlin, packed", ValueError, "columns", {}),
]


@pytest.mark.parametrize("wrong", OF_LAYOUTS, ids=[each[0] for each in OF_LAYOUTS])
def test_a_wrong_layout_is_refused_by_name(kernels, fake, right, wrong):
    says, error, layout, change = wrong
    for name, given in ((PACKED if layout == "packed" else MARLIN) | change).items():
        right[name] = given and fake.Fake(*given)
    with pytest.raises(error) as raised:
        kernels.mxfp4_linear_decode(**right, layout=layout)
    assert says in str(raised.value)


TOP = {"values": ("f32", (M, 2)), "ids": ("i32", (M, 2)), "log_sum": ("f32", (M,)), "scratch": ("u8", (49152,))}
OF_TOP = [
    ("values is bfloat16, wanted float32", TypeError, {"values": ("bf16", (M, 2))}),
    ("values has 17 columns, this kernel takes 1 to 16", ValueError, {"values": ("f32", (M, 17))}),
    ("ids has shape [4, 3], wanted [4, 2]", ValueError, {"ids": ("i32", (M, 3))}),
    ("log_sum has shape [3], wanted [4]", ValueError, {"log_sum": ("f32", (M - 1,))}),
    ("scratch has 49151 bytes, wanted 49152", ValueError, {"scratch": ("u8", (49151,))}),
    ("logits has shape [4, 63], wanted [4, 64]", ValueError, {"logits": ("bf16", (M, N - 1))}),
]


@pytest.mark.parametrize("wrong", OF_TOP, ids=[each[0] for each in OF_TOP])
def test_a_wrong_argument_of_the_search_is_refused_by_name(kernels, fake, wrong):
    says, error, change = wrong
    given = {name: fake.Fake(*of) for name, of in (TOP | change).items()}
    x, w = fake.Fake("bf16", (M, K)), fake.Fake("u8", (N // 16, K // 64, 544))
    with pytest.raises(error) as raised:
        kernels.lm_head_topk_decode(x, w, N, **given)
    assert says in str(raised.value)


@pytest.mark.parametrize("name", ["x", "w", "w_scale", "bias"])
def test_an_output_that_overlaps_an_input(kernels, fake, right, name):
    right["out"] = fake.Fake("bf16", (M, N), memory=right[name].memory, offset=16)
    with pytest.raises(ValueError, match=f"out overlaps {name}"):
        kernels.mxfp4_linear_decode(**right)


def test_right_arguments_come_as_far_as_the_device(kernels, right):
    if shutil.which("nvidia-smi"):
        pytest.skip("there may be a device here: fakes must not reach it")
    for bias in (right["bias"], None):
        with pytest.raises(RuntimeError, match=r"cudaGetDevice: cudaError(NoDevice|InsufficientDriver)"):
            kernels.mxfp4_linear_decode(**(right | {"bias": bias}))


def test_something_that_is_no_tensor(kernels, right):
    with pytest.raises(TypeError):
        kernels.mxfp4_linear_decode(**(right | {"w": 3}))


def run_python(program, *paths):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, "-c", program], env=environment, check=False, capture_output=True, text=True)


@pytest.mark.online
def test_it_loads_with_the_very_tvm_ffi_of_the_image(built, tmp_path):
    if Platform.host().debian != "amd64":
        pytest.skip("pinned for amd64 alone")
    pinned = recipe().target["linux/amd64"][-1]
    file = FOR_311 if sys.version_info < (3, 12) else File(pinned.name, pinned.sha256)
    zipfile.ZipFile(fetch(Store.open(), file, package="apache-tvm-ffi")).extractall(tmp_path)
    program = (
        "import tvm_ffi, sparkforge_kernels\n"
        "from sparkforge_kernels.library import function\n"
        "print(tvm_ffi.__version__, tvm_ffi.__file__, function('mxfp4_linear_decode'))\n"
    )
    done = run_python(program, built.folder, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{recipe().tvm_ffi} {tmp_path}")


def test_asking_for_archs_needs_no_tvm_ffi(built, tmp_path):
    (tmp_path / "tvm_ffi.py").write_text("raise ImportError('hidden')\n")
    program = (
        "import sparkforge_kernels as k\n"
        "print(k.archs())\n"
        "try:\n    k.mxfp4_linear_decode(None, None, None, None, 1)\n"
        "except k.KernelsUnavailableError as e:\n    print(e)\n"
    )
    done = run_python(program, tmp_path, built.folder)
    assert done.stdout.splitlines() == ["('12.1f',)", "apache-tvm-ffi >= 0.1.9 is needed: hidden"], done.stderr


def test_a_source_tree_says_that_nothing_is_compiled(tmp_path):
    source = Path(__file__).resolve().parent.parent / "python"
    done = run_python("import sparkforge_kernels as k\nk.archs()", source)
    assert "no compiled kernels" in done.stderr
    assert "invoke kernels.build" in done.stderr


def test_a_library_that_cannot_be_loaded_says_so(built, tmp_path):
    shutil.copytree(built.folder, tmp_path / "site")
    library = tmp_path / "site" / "sparkforge_kernels" / "lib" / "libsparkforge_kernels.so"
    library.write_text("not a library")
    done = run_python("import sparkforge_kernels as k\nk.mxfp4_linear_decode(1, 2, 3, None, 4)", tmp_path / "site")
    assert "KernelsUnavailableError" in done.stderr
    assert "cannot be loaded" in done.stderr
