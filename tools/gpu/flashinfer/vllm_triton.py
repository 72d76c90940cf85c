"""vLLM's Triton attention from its source files alone, without vLLM's dependencies.

The two files of the kernel are loaded as they are. What they import of the rest of vLLM has a stand-in: a logger, the
platform's FP8 type, Triton itself, one environment variable; the enum of cache types is taken from its source.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib.util
import logging
import sys
import types
from collections.abc import Callable
from pathlib import Path

import torch

FILES = ("triton_attention_helpers", "triton_unified_attention")
INTERFACE = "vllm/v1/kv_cache_interface.py"


@functools.cache
def unified_attention(source: Path | None) -> tuple[Callable[..., None], type[enum.IntEnum]]:
    """The function and `KVQuantMode`; of the installed vLLM where `source`, a folder with `vllm/` in it, is None.

    Raises:
        ImportError: there is neither.
    """
    if source is None:
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention as installed
        from vllm.v1.kv_cache_interface import KVQuantMode

        return installed, KVQuantMode
    import triton
    import triton.language as tl

    _stand_in("vllm")
    _stand_in("vllm.envs", VLLM_BATCH_INVARIANT=False)
    _stand_in("vllm.logger", init_logger=logging.getLogger)
    _stand_in("vllm.platforms", current_platform=types.SimpleNamespace(fp8_dtype=lambda: torch.float8_e4m3fn))
    _stand_in("vllm.triton_utils", tl=tl, triton=triton)
    mode = _enum(source / INTERFACE, "KVQuantMode")
    for package in ("vllm.v1", "vllm.v1.attention", "vllm.v1.attention.ops"):
        _stand_in(package)
    _stand_in("vllm.v1.kv_cache_interface", KVQuantMode=mode)
    for name in FILES:
        full = f"vllm.v1.attention.ops.{name}"
        spec = importlib.util.spec_from_file_location(full, source / f"{full.replace('.', '/')}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return module.unified_attention, mode


def _stand_in(name: str, **content: object) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(content, __path__=[])
    sys.modules[name] = module


def _enum(path: Path, name: str) -> type[enum.IntEnum]:
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    (found,) = [node for node in classes if node.name == name]
    space: dict[str, object] = {"IntEnum": enum.IntEnum}
    exec(compile(ast.Module([found], []), str(path), "exec"), space)  # the class as vLLM wrote it
    return space[name]  # type: ignore[return-value]
