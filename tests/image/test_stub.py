"""The stub of the driver's library, judged by the linkers that will meet it."""

import importlib.util
import shutil
import subprocess

import pytest

from sparkforge.core.paths import IMAGES

_spec = importlib.util.spec_from_file_location("image_stub", IMAGES / "lay" / "stub.py")
stub = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(stub)

HEADER = """
#define cuMemAlloc cuMemAlloc_v2
#define cuOther 7
CUresult CUDAAPI cuInit(unsigned int Flags);
CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize);
    CUresult CUDAAPI cuTensorMapEncodeTiled(void);
// CUresult cuComment
"""


def test_names_are_those_of_the_header_and_of_its_macros():
    assert stub.functions(HEADER) == ["cuInit", "cuMemAlloc", "cuMemAlloc_v2", "cuTensorMapEncodeTiled"]


@pytest.mark.parametrize(("triple", "machine"), [("x86_64-linux-gnu", "X86-64"), ("aarch64-linux-gnu", "AArch64")])
def test_a_linker_takes_it_and_notes_the_real_library(tmp_path, triple, machine):
    compiler = shutil.which(f"{triple}-gcc")
    if compiler is None:
        pytest.skip(f"{triple}-gcc is not here: invoke setup")
    stub.write(tmp_path / "libcuda.so", triple, "libcuda.so.1", stub.functions(HEADER))
    source = tmp_path / "a.c"
    source.write_text("int cuMemAlloc_v2(void *, long); int f(void) { return cuMemAlloc_v2(0, 1); }\n")
    # As Ubuntu's compilers do by themselves: a library none of whose symbols is used is not noted.
    words = [compiler, "-shared", "-fPIC", "-nostdlib", "-Wl,--as-needed", "-Wl,-z,defs", "-o", tmp_path / "a.so"]
    subprocess.run([*words, source, f"-L{tmp_path}", "-lcuda"], check=True)
    said = subprocess.run(["readelf", "-hd", tmp_path / "a.so"], capture_output=True, text=True, check=True).stdout
    assert "[libcuda.so.1]" in said
    assert machine in said
    source.write_text("int cuNothing(void); int f(void) { return cuNothing(); }\n")
    lost = subprocess.run([*words, source, f"-L{tmp_path}", "-lcuda"], capture_output=True, text=True, check=False)
    assert lost.returncode != 0
    assert "cuNothing" in lost.stderr


def test_tools_read_it_without_complaint(tmp_path):
    stub.write(tmp_path / "libcuda.so", "x86_64-linux-gnu", "libcuda.so.1", ["cuInit"])
    done = subprocess.run(["readelf", "-aW", tmp_path / "libcuda.so"], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "cuInit" in done.stdout
