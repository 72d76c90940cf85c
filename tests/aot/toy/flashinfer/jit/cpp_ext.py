import os
import sysconfig

from . import env

DEPENDENCIES = "--generate-dependencies-with-compile --dependency-output"
tvm_ffi = None


def generate_ninja_build_for_op(
    *, name, sources, extra_cflags, extra_cuda_cflags, extra_ldflags, extra_include_dirs, needs_device_linking
):
    home = os.environ["CUDA_HOME"]
    system = [sysconfig.get_path("include"), "$cuda_home/include", "$cuda_home/include/cccl"]
    system += [tvm_ffi.libinfo.find_include_path(), env.DATA / "include", env.DATA / "csrc"]
    includes = [f"-I{folder}" for folder in extra_include_dirs] + [f"-isystem {folder}" for folder in system]
    major, minor = os.environ["FLASHINFER_CUDA_ARCH_LIST"].split(".")
    gencode = f"-gencode=arch=compute_{major}{minor},code=sm_{major}{minor}"
    lines = [
        "ninja_required_version = 1.3",
        f"name = {name}",
        f"cuda_home = {home}",
        "cxx = c++",
        "nvcc = $cuda_home/bin/nvcc",
        "",
        "common_cflags = " + " $\n    ".join(["-DTOY=1", *includes]),
        "cflags = " + " $\n    ".join(["$common_cflags", "-fPIC", *extra_cflags]),
        "post_cflags =",
        "cuda_cflags = " + " $\n    ".join(["$common_cflags", "--compiler-options=-fPIC", gencode, *extra_cuda_cflags]),
        "cuda_post_cflags =",
        "ldflags = " + " $\n    ".join(["-shared", "-L$cuda_home/lib64", "-lcudart", "-lcuda", *extra_ldflags]),
        "",
        "rule compile",
        "  command = $cxx -MMD -MF $out.d $cflags -c $in -o $out $post_cflags",
        "  depfile = $out.d",
        "  deps = gcc",
        "",
        "rule cuda_compile",
        f"  command = $nvcc {DEPENDENCIES} $out.d $cuda_cflags -c $in -o $out $cuda_post_cflags",
        "  depfile = $out.d",
        "  deps = gcc",
        "",
        "rule nvcc_link" if needs_device_linking else "rule link",
        "  command = $cxx $in $ldflags -o $out",
        "",
    ]
    objects = []
    for source in sources:
        out = env.FLASHINFER_JIT_DIR / name / f"{source.stem}.o"
        objects.append(str(out))
        lines.append(f"build {out}: {'cuda_compile' if source.suffix == '.cu' else 'compile'} {source}")
    out = env.FLASHINFER_JIT_DIR / name / f"{name}.so"
    rule = "nvcc_link" if needs_device_linking else "link"
    return "\n".join([*lines, f"build {out}: {rule} {' '.join(objects)}", f"default {out}", ""])
