"""The hashed CUDA toolchain for the intent tests of patches, named by variables, never by PATH."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkforge.aot import tools
from sparkforge.core.platforms import Platform
from sparkforge.core.store import Store
from sparkforge.inputs.toolchain import inspector


@dataclass(frozen=True)
class Cuda:
    """A toolchain for tests.

    Attributes:
        variables: SPARKFORGE_NVCC and SPARKFORGE_CUOBJDUMP (programs), SPARKFORGE_CUDA_INCLUDE (folders of headers).
        identity: everything that decides its results; part of the key of a proof.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    identity: str = ""


def of_store(store: Store) -> Cuda:
    """The toolchain of this machine's platform, fetched if the store has none.

    Raises:
        CheckFailed: a wheel is not the pinned content.
        EnvironmentLacks: there is no g++, or the index has no such file.
    """
    made = tools.ready(store, Platform.host())
    includes = [folder / "include" for folder in (made.cuda, made.more)]
    variables = {
        "SPARKFORGE_NVCC": str(made.nvcc),
        "SPARKFORGE_CUOBJDUMP": str(inspector(store) / "cuobjdump"),
        "SPARKFORGE_CUDA_INCLUDE": os.pathsep.join(map(str, [*includes, made.cuda / "include" / "cccl"])),
    }
    return Cuda(variables, made.identity)
