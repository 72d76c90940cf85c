"""The quantizer and the dense layer of V-06 on the device, and the decode kernel behind V-10's registry.

    python dense.py OUT.json [--decode]

Without --decode: the quantizer against exact.py, bit for bit, and Marlin against float64. With it: the layer asks the
registry, so M of 1 to 8 runs on what a package on PYTHONPATH offers, eager and in a replayed graph.

The bound, for each output y of K products: |y - exact| <= 2^-8 (|exact| + |exact - bias|) + 2^-24 K sum|x w|.
The first term is the rounding to BF16 of the sum and of the sum with its bias, with as much again for a truncating
epilogue; the second is a float32 sum in any order (products of BF16 and MXFP4 are exact in float32).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import bound
import exact
import torch

SEED = 7
# Name, N, K, bias: what --mxfp4-layers holds of gpt-oss-120b.
LAYERS = (("qkv", 5120, 2880, True), ("o", 2880, 4096, True), ("lm_head", 201088, 2880, False))
TOKENS = (1, 2, 4, 8, 16, 64, 300)


def hard_weights(rows: int, k: int, generator: torch.Generator) -> torch.Tensor:
    """BF16 [rows, k] with what a quantizer gets wrong: every exponent, ties, zeros, representable blocks, extremes."""
    bits = torch.randint(0, 1 << 16, (rows, k), generator=generator, device="cuda", dtype=torch.int32).to(torch.int16)
    wild = bits.view(torch.bfloat16)
    wild = torch.where(wild.isfinite(), wild, torch.zeros_like(wild))
    noise = torch.randn(rows, k, generator=generator, device="cuda")
    values = torch.tensor((0, 0.5, 1, 1.5, 2, 3, 4, 6), device="cuda")
    held = values[torch.randint(0, 8, (rows, k), generator=generator, device="cuda")] * noise.sign()
    halves = torch.tensor((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0), device="cuda")
    ties = halves[torch.randint(0, 8, (rows, k), generator=generator, device="cuda")] * noise.sign()
    scale = torch.exp2(torch.randint(-120, 120, (rows, k // 32), generator=generator, device="cuda").float())
    scale = scale.repeat_interleave(32, dim=1)
    kinds = [wild, noise.bfloat16(), (held * scale).bfloat16(), (ties * scale).bfloat16()]
    which = torch.arange(rows, device="cuda") % 4
    found = torch.stack(
        [torch.where((which == n).unsqueeze(1), kind, torch.zeros_like(kind)) for n, kind in enumerate(kinds)]
    )
    weight = found.sum(dim=0).bfloat16()
    weight[0] = 0
    weight[1, :64] = -0.0
    weight[2] = torch.finfo(torch.bfloat16).max
    weight[3] = torch.finfo(torch.bfloat16).tiny * 2.0**-7
    return weight


def quantizer() -> dict:
    """Codes and scales of the product against brute force; blocks that MXFP4 holds come back as they were."""
    from vllm.model_executor.layers.quantization.online.mxfp4 import dequantize_mxfp4, quantize_mxfp4

    generator = torch.Generator(device="cuda").manual_seed(SEED)
    report = {}
    for name, rows, k in (("hard", 4096, 2880), ("lm_head", 201088, 2880)):
        if name == "hard":
            weight = hard_weights(rows, k, generator)
        else:
            weight = (torch.randn(rows, k, generator=generator, device="cuda") * 0.05).bfloat16()
        codes, scales = quantize_mxfp4(weight)
        wrong = scale_wrong = inexact = infinite = 0
        for at in range(0, rows, 4096):
            part = slice(at, at + 4096)
            want_codes, want_scales = exact.quantize(weight[part])
            wrong += int((codes[part] != want_codes).sum())
            scale_wrong += int((scales[part] != want_scales).sum())
            back = dequantize_mxfp4(codes[part], scales[part])
            infinite += int((~back.isfinite()).sum())
            again = exact.quantize(back)
            inexact += int((exact.dequantize(*again) != back.double()).sum())
        report[name] = {
            "elements": weight.numel(),
            "code bytes that differ": wrong,
            "scales that differ": scale_wrong,
            "not finite": infinite,
            "not kept on a second pass": inexact,
        }
    return report


def layer(n: int, k: int, biased: bool, generator: torch.Generator):
    """The product's method on a bare layer; its float64 weight, and the exact bias."""
    from vllm.model_executor.layers.quantization.online.mxfp4 import Mxfp4OnlineLinearMethod

    held = torch.nn.Module()
    method = Mxfp4OnlineLinearMethod("bare")
    held.input_size_per_partition, held.output_size_per_partition = k, n
    held.params_dtype = torch.bfloat16
    weight = (torch.randn(n, k, generator=generator, device="cuda") * k**-0.5).bfloat16()
    held.register_parameter("weight", torch.nn.Parameter(weight.clone(), requires_grad=False))
    codes, scales = exact.quantize_pieces(weight)
    bias = None
    if biased:
        bias = (torch.randn(n, generator=generator, device="cuda") * 0.3).bfloat16()
        held.register_parameter("bias", torch.nn.Parameter(bias.clone(), requires_grad=False))
    method.process_weights_after_loading(held)
    return method, held, codes, scales, bias


def judged(y: torch.Tensor, x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, bias) -> dict:
    """Error of y [M, N] against float64, in parts of the bound, relative to all of it, and in the largest output."""
    worst = 0.0
    off = whole = 0.0
    finite = bool(y.isfinite().all())
    for at in range(0, codes.shape[0], 16384):
        part = slice(at, at + 16384)
        weight = exact.dequantize(codes[part], scales[part])
        product = x.double() @ weight.T
        want = product if bias is None else product + bias[part].double()
        total = x.double().abs() @ weight.abs().T
        bound = 2.0**-8 * (want.abs() + product.abs()) + 2.0**-24 * x.shape[1] * total + 1e-30
        error = (y[:, part].double() - want).abs()
        worst = max(worst, float((error / bound).max()))
        off += float(error.square().sum())
        whole += float(want.square().sum())
    return {"of the bound": worst, "relative": (off / whole) ** 0.5, "finite": finite}


def layers(decode: bool) -> dict:
    """Each layer at each number of tokens."""
    from vllm.model_executor.layers import decode_ops  # noqa: F401  registers the operators
    from vllm.utils.decode_kernels import decode_kernel

    generator = torch.Generator(device="cuda").manual_seed(SEED)
    report: dict = {}
    for name, n, k, biased in LAYERS:
        method, held, codes, scales, bias = layer(n, k, biased, generator)
        report[name] = {"rows kept": hasattr(held, "rows_weight")}
        for m in (1, 2, 3, 4, 5, 7, 8, 9, 64) if decode else TOKENS:
            x = torch.randn(m, k, generator=generator, device="cuda").bfloat16()
            own = getattr(held, "bias", None)
            y = method.apply(held, x, own)
            torch.cuda.synchronize()
            found = judged(y, x, codes, scales, bias)
            found["kernel"] = "decode" if decode and decode_kernel("dense", m) is not None else "Marlin"
            again = method.apply(held, x, own)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = method.apply(held, x, own)
            graph.replay()
            torch.cuda.synchronize()
            found["runs equal"] = bool((y == again).all())
            found["graph equals eager"] = bool((captured == y).all())
            report[name][str(m)] = found
    return report


def main() -> None:
    """Write what was found; a part that fails leaves its error in its place."""
    from vllm.config import VllmConfig, set_current_vllm_config

    out, decode = Path(sys.argv[1]), "--decode" in sys.argv
    torch.backends.cuda.matmul.allow_tf32 = False
    report: dict = {}
    parts = {"layers": lambda: layers(decode)}
    if not decode:
        parts = {"quantizer": quantizer, **parts}
    with torch.inference_mode(), set_current_vllm_config(VllmConfig()):
        for name, part in parts.items():
            try:
                report[name] = part()
            except Exception as error:  # the other part is still worth running
                import traceback

                traceback.print_exc()
                report[name] = {"error": f"{type(error).__name__}: {error}"}
    out.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
    bound.tell()
