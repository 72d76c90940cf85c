"""What FlashInfer is asked for: each module that is requested, where it was found, and each function looked up on it.

The library of a module is really loaded, by FlashInfer's own loader, and what it exports is asked of the loaded one.
Its functions are not run: they launch kernels. They are recorded, and give what their callers need to go on.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What a function gives its caller where that is more than nothing. Names are those of the FA2 planner and of the MoE
# runner (csrc/batch_prefill.cu, csrc/fused_moe/cutlass_backend/flashinfer_cutlass_fused_moe_binding.cu).
ANSWERS: dict[str, Callable[..., Any]] = {
    "plan": lambda *_: [0] * 16,
    "get_gemm1_tactic_count": lambda: 2,
    "get_gemm2_tactic_count": lambda: 2,
    "get_tactic_num": lambda: 4,
    "get_tactic_name": lambda index: f"128x128x128 swap_ab={index % 2} finalize=0",
}
OBJECTS = {"init"}  # functions that give an object with methods


@dataclass
class Module:
    """One module that was asked for.

    Attributes:
        name: of FlashInfer's specification.
        routes: which asked for it, or for a function of it when it was there already.
        file: where it was taken from; "" where it is not there.
        problem: why it is not usable; "" where it is.
        functions: looked up on it: whether the library has it.
        methods: looked up on an object of it: whether the library holds that name.
        calls: how often each was called.
    """

    name: str
    routes: list[str] = field(default_factory=list)
    file: str = ""
    problem: str = ""
    functions: dict[str, bool] = field(default_factory=dict)
    methods: dict[str, bool] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    def missing(self) -> list[str]:
        """Names that it lacks."""
        return [name for found in (self.functions, self.methods) for name, there in found.items() if not there]


class Recorder:
    """Stands between FlashInfer and its libraries."""

    def __init__(self) -> None:
        self.modules: dict[str, Module] = {}
        self.route = ""
        self.called: set[str] = set()

    def begin(self, route: str) -> None:
        """Another route begins."""
        self.route, self.called = route, set()

    def install(self) -> None:
        """From here on every module that FlashInfer loads is recorded."""
        from flashinfer.jit import core  # noqa: PLC0415  it is found where the check runs

        spec: Any = core.JitSpec
        load = spec.build_and_load
        recorder = self

        def build_and_load(self: Any) -> Any:
            return recorder.asked(self, load)

        spec.build_and_load = build_and_load

    def asked(self, spec: Any, load: Callable[[Any], Any]) -> Any:
        """A module was asked for: load it as FlashInfer does, and hand out what records."""
        module = self.modules.setdefault(spec.name, Module(spec.name))
        self.used(module)
        library = None
        try:
            library = load(spec)
            module.file = str(spec.get_library_path())
            if not spec.is_aot:
                module.problem = f"it was not taken from {spec.aot_path.parent.parent}"
        except Exception as refused:  # noqa: BLE001  whatever a server would stop with
            there = spec.aot_path.exists()
            what = _first_line(refused) if there else f"{spec.aot_path} is not there"
            module.problem = f"{what} ({type(refused).__name__})"
        return Functions(self, module, library)

    def used(self, module: Module) -> None:
        """The route that runs now uses a module."""
        if self.route not in module.routes:
            module.routes.append(self.route)

    def calling(self, module: Module, name: str, given: Any = None) -> Callable[..., Any]:
        """A function that is counted and answers."""

        def call(*args: Any) -> Any:
            self.used(module)
            self.called.add(name)
            module.calls[name] = module.calls.get(name, 0) + 1
            answer = ANSWERS.get(name)
            return given if answer is None else answer(*args)

        return call


class Functions:
    """A module's functions, as its callers look them up."""

    def __init__(self, recorder: Recorder, module: Module, library: Any) -> None:
        self._recorder, self._module, self._library = recorder, module, library

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        module = self._module
        # A module that is not there has no functions; it is reported as what it is.
        module.functions[name] = self._library is None or _has(self._library, name)
        return self._recorder.calling(module, name, Methods(self._recorder, module) if name in OBJECTS else None)


class Methods:
    """An object that a module made: the real one needs a device, so its methods are looked for by name."""

    def __init__(self, recorder: Recorder, module: Module) -> None:
        self._recorder, self._module = recorder, module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        module = self._module
        module.methods[name] = not module.file or _holds(Path(module.file), name)
        return self._recorder.calling(module, name)


def _has(library: Any, name: str) -> bool:
    try:
        getattr(library, name)
    except AttributeError:
        return False
    return True


def _holds(library: Path, name: str) -> bool:
    """Whether a library holds a name as a string, or as the end of one: a linker shares them."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return re.search(rb"(?<![A-Za-z0-9_])" + re.escape(name.encode()) + rb"\0", data) is not None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")
