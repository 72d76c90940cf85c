from types import SimpleNamespace

from .jit import env


def spec(name, sources):
    return SimpleNamespace(
        name=name,
        sources=sources,
        extra_cflags=["-O1", "-std=c++17"],
        extra_cuda_cflags=["-O1", "-std=c++17"],
        extra_ldflags=[],
        extra_include_dirs=[env.FLASHINFER_GEN_SRC_DIR],
        needs_device_linking=False,
    )


def gen_modules(*, cuda=False, broken=False):
    csrc = env.DATA / "csrc"
    env.FLASHINFER_GEN_SRC_DIR.mkdir(exist_ok=True)
    (env.FLASHINFER_GEN_SRC_DIR / "generated.h").write_text("#pragma once\n#define GENERATED 5\n")
    one = [csrc / "one.cpp", csrc / "common.cpp"]
    two = [csrc / "two.cpp", csrc / "common.cpp"]
    if cuda:
        two.append(csrc / "kernel.cu")
    if broken:
        one.append(csrc / "broken.cpp")
    return [spec("one", one), spec("two", two)]
