"""Say how FlashInfer compiles its modules. Runs in the Python of an environment that has torch: no import of ours.

`python describe.py ROOT OPTIONS` where ROOT holds the package `flashinfer` and takes what it generates; OPTIONS are
the keyword arguments of `flashinfer.aot_gpt_oss.gen_modules` as JSON. Prints one JSON object on its last line:
name, sources, build file (ninja's text) of each module.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

_FFI = ("find_include_path", "find_dlpack_include_path")


def main() -> None:
    """Print the description."""
    root = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(root))
    import flashinfer  # type: ignore[import-not-found]  # noqa: PLC0415  found in ROOT only from here on

    if Path(flashinfer.__file__).resolve().parent != root / "flashinfer":
        sys.exit(f"flashinfer was imported from {flashinfer.__file__} and not from {root}")
    from flashinfer.jit import env  # type: ignore[import-not-found]  # noqa: PLC0415

    env.FLASHINFER_GEN_SRC_DIR = root / "generated"
    env.FLASHINFER_JIT_DIR = root / "ops"
    from flashinfer import aot_gpt_oss  # noqa: PLC0415
    from flashinfer.jit import cpp_ext  # noqa: PLC0415

    # Headers of the Python and the TVM-FFI of this environment are not what the target has.
    include = {"get_path": lambda _: str(root / "python"), "get_config_var": sysconfig.get_config_var}
    cpp_ext.sysconfig = SimpleNamespace(**include)
    libinfo = {name: lambda: str(root / "tvm_ffi" / "include") for name in _FFI}
    cpp_ext.tvm_ffi = SimpleNamespace(libinfo=SimpleNamespace(**libinfo))

    described = [
        {
            "name": spec.name,
            "ninja": cpp_ext.generate_ninja_build_for_op(
                name=spec.name,
                sources=spec.sources,
                extra_cflags=spec.extra_cflags,
                extra_cuda_cflags=spec.extra_cuda_cflags,
                extra_ldflags=spec.extra_ldflags,
                extra_include_dirs=spec.extra_include_dirs,
                needs_device_linking=spec.needs_device_linking,
            ),
        }
        for spec in aot_gpt_oss.gen_modules(**json.loads(sys.argv[2]))
    ]
    print(json.dumps(described))


main()
