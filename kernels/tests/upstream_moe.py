"""Write tests/data/marlin.npz: MXFP4 weights, scales and biases as vLLM's own functions lay them for Marlin.

    python kernels/tests/upstream_marlin.py VLLM_SOURCE_TREE

Needs torch. The functions are taken out of their files, so that nothing else of vLLM must be installed.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import numpy as np

FUNCTIONS = {
    "marlin_utils_test.py": {"marlin_permute_weights", "marlin_weights", "get_weight_perm"},
    "marlin_utils.py": {"get_scale_perms", "marlin_permute_scales", "marlin_permute_bias"},
    "marlin_utils_fp4.py": {"mxfp4_marlin_process_scales"},
    "quant_utils.py": {"get_pack_factor"},
}
ROWS, K = 128, 192


def main() -> None:
    import torch  # noqa: PLC0415  only this program needs it

    folder = Path(sys.argv[1]) / "vllm/model_executor/layers/quantization/utils"
    upstream = {"torch": torch, "np": np, "GPTQ_MARLIN_TILE": 16}
    for name, wanted in FUNCTIONS.items():
        tree = ast.parse((folder / name).read_text())
        body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in wanted]
        exec(compile(ast.Module(body, []), name, "exec"), upstream)  # that is the point
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 16, (ROWS, K), dtype=np.uint8)
    scales = rng.integers(0, 255, (ROWS, K // 32), dtype=np.uint8)
    permutation = upstream["get_weight_perm"](4)
    packed = upstream["marlin_weights"](torch.from_numpy(codes.T.astype(np.int32)), K, ROWS, 4, permutation)
    as_float = torch.from_numpy(scales).view(torch.float8_e8m0fnu).to(torch.bfloat16).T
    laid = upstream["marlin_permute_scales"](s=as_float, size_k=K, size_n=ROWS, group_size=32)
    laid = upstream["mxfp4_marlin_process_scales"](laid).view(torch.uint8)
    bias = upstream["marlin_permute_bias"](torch.arange(ROWS))
    out = Path(__file__).resolve().parent / "data" / "marlin.npz"
    np.savez_compressed(
        out,
        codes=codes,
        scales=scales,
        packed=packed.numpy().view(np.uint8),
        packed_scales=laid.numpy(),
        bias=bias.numpy(),
    )


if __name__ == "__main__":
    main()
