"""The compiled library: what it was built for, and its loading on first use."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent


class KernelsUnavailableError(RuntimeError):
    """The compiled library is not there or cannot be loaded; says why."""


@cache
def build_facts() -> dict[str, Any]:
    """build.json: sha256 of the library, archs, platform, versions of nvcc and TVM-FFI, exported functions.

    Raises:
        KernelsUnavailableError: this is a source tree and not an installed build.
    """
    path = _HERE / "build.json"
    try:
        facts: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError as lost:
        raise KernelsUnavailableError(
            f"no compiled kernels beside {_HERE}: build them with `invoke kernels.build`"
        ) from lost
    return facts


def archs() -> tuple[str, ...]:
    """Architectures that the library holds machine code for, as ("12.1f",)."""
    return tuple(build_facts()["archs"])


def supports(capability: tuple[int, int]) -> bool:
    """Whether the library has code that runs on a device of this compute capability, (12, 1) for GB10.

    Code for 12.1f runs on later chips of family 12, code for 12.1a on 12.1 alone, code for 12.1 on later chips of the
    same major number; there is no PTX in the library that a driver could compile for others.
    """
    major, minor = capability
    for arch in archs():
        plain = arch.rstrip("af")
        built = tuple(int(part) for part in plain.split("."))
        if built == (major, minor) or (built[0] == major and built[1] < minor and not arch.endswith("a")):
            return True
    return False


@cache
def function(name: str) -> Callable[..., Any]:
    """An exported function of the library, which is loaded at the first call.

    Raises:
        KernelsUnavailableError: TVM-FFI is missing, or the library cannot be loaded.
    """
    found: Callable[..., Any] = getattr(_module(), name)
    return found


@cache
def _module() -> Any:
    facts = build_facts()
    path = _HERE / "lib" / "libsparkforge_kernels.so"
    try:
        import tvm_ffi  # noqa: PLC0415  a program that asks only for archs() needs no TVM-FFI
    except ImportError as lost:
        raise KernelsUnavailableError(f"apache-tvm-ffi >= {facts['tvm_ffi']} is needed: {lost}") from lost
    try:
        return tvm_ffi.load_module(str(path))
    except Exception as failed:  # whatever TVM-FFI raises for a library that cannot be loaded
        raise KernelsUnavailableError(f"{path}, built for {facts['platform']}, cannot be loaded: {failed}") from failed
