"""FlashInfer's fused MoE module for sm_90, reduced to BF16 x BF16: compiles in minutes, offers all tactics of that type.

    PYTHONPATH=<package> python moe_sm90.py OUT [--jobs N] [--kernels OTHER]     compiles OUT/fused_moe_90_bf16.so

With --kernels the GEMM kernels are those that were compiled for OTHER, from another tree, and all else is this tree's:
what calls them, chooses them and numbers them. --compile-only leaves the linking to a second call.
The binding, the heuristics, the dispatch and the GEMM kernels of BF16 are the tree's, unchanged, with the flags of the
tree's own module. Other types are left out; what refers to them is linked to stubs that throw, so that a call that
needs one of them is an error and not a wrong answer.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import subprocess
import types
from pathlib import Path

NAME = "fused_moe_90_bf16"
KERNELS, FILES = "gemm_kernels", 8
KERNEL = "Sm90, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16"
OTHER = re.compile(r"moe_gemm_kernels_(?!bf16_bf16)|fp8_blockscale_gemm\.cu$")


def wanted(source: Path) -> bool:
    if source.name.endswith(".generated.cu"):
        return KERNEL in source.read_text()
    return OTHER.search(source.name) is None


def spread(generated: list[Path], folder: Path, files: int = FILES) -> list[Path]:
    """The kernels of generated files, mixed: the slow ones do not stand together. Headers take longer than a kernel."""
    heads, tails, bodies = set(), set(), []
    for source in generated:
        head, *kernels = re.split(r"^#if .*\n", source.read_text(), flags=re.MULTILINE)
        heads.add(head)
        tails.add(kernels[-1].partition("#endif")[2])
        bodies += [kernel.partition("#endif")[0] for kernel in kernels]
    (head,), (tail,) = heads, tails
    folder.mkdir(parents=True, exist_ok=True)
    parts = [folder / f"{KERNELS}_{i}.cu" for i in range(min(files, len(bodies)))]
    for i, part in enumerate(parts):
        text = head + "".join(bodies[i::files]) + tail
        if not part.exists() or part.read_text() != text:
            part.write_text(text)
    return parts


def build(out: Path, jobs: int, *, kernels: Path | None = None, link: bool = True) -> Path:
    """The library; RuntimeError if something of BF16 is not in it."""
    from flashinfer.jit.fused_moe import gen_cutlass_fused_moe_sm90_module

    spec = gen_cutlass_fused_moe_sm90_module()
    sources = [source for source in spec.sources if wanted(source)]
    generated = [source for source in sources if source.name.endswith(".generated.cu")]
    sources = [source for source in sources if source not in generated]
    if kernels is None:
        sources += spread(generated, out / "parts")
    spec = dataclasses.replace(spec, name=NAME, sources=sources)
    spec.write_ninja()
    text = spec.ninja_path.read_text()
    objects = re.findall(r"^build (\S+\.o): ", text, re.MULTILINE)
    subprocess.run(["ninja", "-C", spec.build_dir, f"-j{jobs}", *objects], check=True, stdout=subprocess.DEVNULL)
    out.mkdir(parents=True, exist_ok=True)
    if kernels is None:
        (out / "kernels.txt").write_text("\n".join(name for name in objects if f"_{KERNELS}_" in name))
    library = out / f"{NAME}.so"
    if not link:
        return library
    if kernels is not None:
        objects += (kernels / "kernels.txt").read_text().split()
    (libraries,) = re.findall(r"^ldflags = ((?:.*\$\n)*.*)$", text, re.MULTILINE)
    cuda = re.search(r"^cuda_home = (.*)$", text, re.MULTILINE)
    assert cuda is not None
    flags = libraries.replace("$\n", " ").replace("$cuda_home", cuda[1]).split()

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--kernels", type=Path)
    parser.add_argument("--compile-only", action="store_true")
    options = parser.parse_args()
    of = options.kernels and options.kernels.resolve()
    print(build(options.out.resolve(), options.jobs, kernels=of, link=not options.compile_only))
