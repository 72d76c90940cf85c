"""vLLM's own Python for Marlin's layout, run on NumPy: the functions are taken from its sdist, and not copied."""

from __future__ import annotations

import ast
import tarfile
from types import SimpleNamespace

import numpy as np

FOLDER = "vllm/model_executor/layers/quantization/utils/"
WANTED = {
    "marlin_utils.py": ("get_scale_perms", "marlin_permute_scales", "marlin_permute_bias"),
    "marlin_utils_fp4.py": ("mxfp4_marlin_process_scales",),
    "marlin_utils_test.py": ("marlin_permute_weights", "marlin_weights", "get_weight_perm"),
}


class Like:
    """The few methods of a torch tensor that these functions call, over an array."""

    def __init__(self, array):
        self.array = np.asarray(array)
        self.device = "cpu"

    @property
    def shape(self):
        return self.array.shape

    def numel(self):
        return self.array.size

    def size(self, axis):
        return self.array.shape[axis]

    def reshape(self, *shape):
        return Like(self.array.reshape(*shape))

    view = reshape

    def permute(self, order):
        return Like(self.array.transpose(order))

    def __getitem__(self, key):
        return Like(self.array[tuple(getattr(k, "array", k) for k in key)])

    def to(self, _):
        return self

    def cpu(self):
        return self

    contiguous = cpu

    def numpy(self):
        return self.array


def load(sdist):
    """The functions of WANTED from a vLLM sdist, in one namespace."""
    torch = SimpleNamespace(from_numpy=Like, float8_e8m0fnu="e8m0", float8_e4m3fn="e4m3", Tensor=Like, dtype=object)
    names = {"torch": torch, "np": np, "GPTQ_MARLIN_TILE": 16, "get_pack_factor": lambda bits: 32 // bits}
    with tarfile.open(sdist) as archive:
        for member in archive:
            _, _, path = member.name.partition("/")
            if not path.startswith(FOLDER) or path[len(FOLDER) :] not in WANTED:
                continue
            tree = ast.parse(archive.extractfile(member).read())
            found = WANTED[path[len(FOLDER) :]]
            body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in found]
            assert len(body) == len(found), f"{path} no longer has {found}"
            future = ast.parse("from __future__ import annotations").body
            exec(compile(ast.Module(future + body, []), path, "exec"), names)
    return SimpleNamespace(**{name: names[name] for group in WANTED.values() for name in group})
