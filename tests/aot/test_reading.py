"""What FlashInfer and the compilers write is read; what is not of that shape is refused."""

from __future__ import annotations

import pytest

from sparkforge.aot import build_files, plan
from sparkforge.core.errors import CheckFailed
from sparkforge.inspect import findings

TEXT = """ninja_required_version = 1.3
cxx = c++
flags = -O2 $
    -I/root/include
rule compile
  command = $cxx -MMD -MF $out.d $flags -c $in -o $out
  depfile = $out.d
  deps = gcc
rule link
  command = $cxx $in -shared -lcuda -o $out

build /root/ops/a.o: compile /root/a.cpp
build /root/ops/m.so: link /root/ops/a.o
default /root/ops/m.so
"""


def test_a_build_file_gives_its_commands():
    one, linked = build_files.edges(TEXT)
    assert " ".join(one.words) == "c++ -MMD -MF /root/ops/a.o.d -O2 -I/root/include -c /root/a.cpp -o /root/ops/a.o"
    assert (one.rule, one.inputs, one.out) == ("compile", ("/root/a.cpp",), "/root/ops/a.o")
    assert linked.words == ("c++", "/root/ops/a.o", "-shared", "-lcuda", "-o", "/root/ops/m.so")


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("  deps = gcc", "  pool = link"),
        ("default /root/ops/m.so", "subninja other"),
        (": compile /root", ": assemble /root"),
    ],
)
def test_a_build_file_of_another_shape_is_refused(was, now):
    with pytest.raises(CheckFailed, match="has a shape that is not known"):
        build_files.edges(TEXT.replace(was, now))


def test_dependencies_are_read_with_their_escapes():
    assert build_files.dependencies("a.o: a.cu b\\ c.h \\\n d$$.h a.cu\nd.h:\n") == ["a.cu", "b c.h", "d$.h"]


def test_a_path_outside_of_the_root_is_refused(tmp_path):
    text = TEXT.replace("/root/", f"{tmp_path}/")
    with pytest.raises(CheckFailed, match="outside"):
        plan._module(tmp_path, "m", build_files.edges(text))
    fine = text.replace(f"-I{tmp_path}/include", f"-I{tmp_path}/generated")
    (unit,) = plan._module(tmp_path, "m", build_files.edges(fine)).units
    assert unit.words[:2] == ("-O2", "-Igenerated")
    assert not any(str(tmp_path) in word for word in unit.words)
    with pytest.raises(CheckFailed, match="outside"):
        plan._module(tmp_path, "m", build_files.edges(fine.replace("-O2", "-O2 -isystem /opt/include")))


def test_a_module_that_is_linked_otherwise_is_refused(tmp_path):
    text = TEXT.replace("/root/", f"{tmp_path}/").replace("link", "nvcc_link")
    with pytest.raises(CheckFailed, match="unknown way"):
        plan._module(tmp_path, "m", build_files.edges(text))


def test_the_newest_version_of_each_family_is_told():
    asked = ("GLIBC_2.4", "GLIBC_2.34", "GLIBCXX_3.4.29", "CXXABI_1.3", "GLIBC_PRIVATE")
    assert findings.newest(asked) == {"CXXABI": "1.3", "GLIBC": "2.34", "GLIBCXX": "3.4.29"}
