"""FlashInfer's fused MoE module for sm_90, reduced to BF16 x BF16: compiles in minutes, offers all tactics of that type.

    PYTHONPATH=<package> python moe_sm90.py OUT [JOBS]     compiles OUT/fused_moe_90_bf16.so

The binding, the heuristics, the dispatch and the GEMM kernels of BF16 are the tree's, unchanged, with the flags of the
tree's own module. Other types are left out; what refers to them is linked to stubs that throw, so that a call that
needs one of them is an error and not a wrong answer.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import types
from pathlib import Path

NAME = "fused_moe_90_bf16"
KERNEL = "Sm90, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16"
OTHER = re.compile(r"moe_gemm_kernels_(?!bf16_bf16)|fp8_blockscale_gemm\.cu$")


def wanted(source: Path) -> bool:
    if source.name.endswith(".generated.cu"):
        return KERNEL in source.read_text()
    return OTHER.search(source.name) is None


def split(source: Path, folder: Path) -> list[Path]:
    """A file for each kernel of a generated one, which has eight: they compile beside each other."""
    if not source.name.endswith(".generated.cu"):
        return [source]
    head, *kernels = re.split(r"^#if .*\n", source.read_text(), flags=re.MULTILINE)
    bodies = [kernel.partition("#endif")[0] for kernel in kernels]
    tail = kernels[-1].partition("#endif")[2]
    folder.mkdir(parents=True, exist_ok=True)
    parts = [folder / f"{source.name.removesuffix('.generated.cu')}_{i}.generated.cu" for i in range(len(bodies))]
    for part, body in zip(parts, bodies, strict=True):
        text = head + body + tail
        if not part.exists() or part.read_text() != text:
            part.write_text(text)
    return parts


def build(out: Path, jobs: int) -> Path:
    """The library; RuntimeError if something of BF16 is not in it."""
    from flashinfer.jit.fused_moe import gen_cutlass_fused_moe_sm90_module

    spec = gen_cutlass_fused_moe_sm90_module()
    sources = [source for source in spec.sources if wanted(source)]
    sources = [part for source in sources for part in split(source, out / "parts")]
    spec = dataclasses.replace(spec, name=NAME, sources=sources)
    spec.write_ninja()
    text = spec.ninja_path.read_text()
    objects = re.findall(r"^build (\S+\.o): ", text, re.MULTILINE)
    subprocess.run(["ninja", "-C", spec.build_dir, f"-j{jobs}", *objects], check=True, stdout=subprocess.DEVNULL)
    (libraries,) = re.findall(r"^ldflags = ((?:.*\$\n)*.*)$", text, re.MULTILINE)
    cuda = re.search(r"^cuda_home = (.*)$", text, re.MULTILINE)
    assert cuda is not None
    flags = libraries.replace("$\n", " ").replace("$cuda_home", cuda[1]).split()

    out.mkdir(parents=True, exist_ok=True)
    bare = out / "bare.so"
    subprocess.run(["c++", *objects, *flags, "-o", bare], check=True)
    missing = undefined(bare)
    ours = [name for name in missing if "tma_warp_specialized_generic_moe_gemm_kernelLauncher" in name]
    if ours:
        message = f"{len(ours)} GEMM kernels of BF16 are not compiled: {ours[0]}"
        raise RuntimeError(message)
    stubs = out / "stubs.cpp"
    stubs.write_text(
        "#include <stdexcept>\n"
        + "".join(
            f'extern "C" void stub_{i}() asm("{name}");\n'
            f'extern "C" void stub_{i}() {{ throw std::runtime_error("not compiled into this module: {name}"); }}\n'
            for i, name in enumerate(missing)
        )
    )
    library = out / f"{NAME}.so"
    subprocess.run(["c++", "-fPIC", *objects, stubs, *flags, "-o", library], check=True)
    assert not undefined(library)
    return library


def undefined(library: Path) -> list[str]:
    """Names of TensorRT-LLM's that a library refers to and does not have."""
    done = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
    return [line.split()[-1] for line in done.stdout.splitlines() if "tensorrt_llm" in line]


def use(library: Path) -> dict[str, int]:
    """Makes FlashInfer load this library for sm_90; the dict counts how often a compiled runner is made."""
    import tvm_ffi
    from flashinfer.fused_moe import core

    loaded, counts = tvm_ffi.load_module(str(library)), {"init": 0}

    def init(*args: object) -> object:
        counts["init"] += 1
        return loaded.init(*args)

    module = types.SimpleNamespace(init=init, set_deepgemm_jit_include_dirs=loaded.set_deepgemm_jit_include_dirs)
    core.gen_cutlass_fused_moe_sm90_module = lambda *_: types.SimpleNamespace(build_and_load=lambda: module)
    core.get_cutlass_fused_moe_module.cache_clear()
    return counts


if __name__ == "__main__":
    print(build(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 16))
