"""Is lm_head_topk_decode right? Against torch on the logits that mxfp4_linear_decode writes."""

from __future__ import annotations

from typing import Any

import torch
from correct import Case, make


def _call(kernels: Any, case: Case, w: Any, top: int, logits: Any = None) -> tuple[Any, Any, Any]:
    m, n = case.x.shape[0], case.w.shape[0]
    values = torch.full((m, top), -7.0, device="cuda")
    ids = torch.full((m, top), -7, dtype=torch.int32, device="cuda")
    log_sum = torch.full((m,), -7.0, device="cuda")
    scratch = torch.randint(0, 256, (kernels.lm_head_topk_scratch(m, top),), dtype=torch.uint8, device="cuda")
    kernels.lm_head_topk_decode(case.x, w, n, values, ids, log_sum, scratch, bias=case.bias, logits=logits)
    return values, ids, log_sum


def check(generator: torch.Generator, kernels: Any) -> tuple[list[str], int]:
    """What is wrong, and how many tokens were compared."""
    wrong, count = [], 0
    for n, k in ((16, 32), (77, 96), (5000, 2880), (40001, 2880), (3000, 4096), (201088, 2880)):
        for m in (1, 3, 8):
            case = make("topk", (m, n, k), generator, "cuda", bias=m == 3)  # noqa: PLR2004  one of the three
            # Copies of rows far apart: equal logits, of which the lowest row must come first.
            case.w[n // 2] = case.w[0]
            case.scale[n // 2] = case.scale[0]
            w = kernels.pack(case.w, case.scale)
            want = kernels.mxfp4_linear_decode(
                case.x, w, None, case.bias, torch.empty(m, n, dtype=torch.bfloat16, device="cuda"), layout="packed"
            ).float()
            for top in (1, 2, 8, 16):
                logits = torch.empty(m, n, dtype=torch.bfloat16, device="cuda") if top == 2 else None  # noqa: PLR2004
                values, ids, log_sum = _call(kernels, case, w, top, logits)
                order = torch.sort(want, dim=1, descending=True, stable=True)
                says = []
                if not torch.equal(values, order.values[:, :top]):
                    says.append("values")
                if not torch.equal(ids.long(), order.indices[:, :top]):
                    says.append("ids")
                if not torch.allclose(log_sum, torch.logsumexp(want.double(), 1).float(), rtol=1e-5, atol=1e-4):
                    says.append("log-sum-exp")
                if logits is not None and not torch.equal(logits.float(), want):
                    says.append("logits")
                again = _call(kernels, case, w, top)
                if not all(torch.equal(a, b) for a, b in zip(again, (values, ids, log_sum), strict=True)):
                    says.append("bits from run to run")
                wrong += [f"top {top} of {n} by {k}, {m} tokens: {what}" for what in says]
                count += m
    return wrong + _with_nan(generator, kernels), count


def _with_nan(generator: torch.Generator, kernels: Any) -> list[str]:
    case = make("topk", (2, 3000, 2880), generator, "cuda", bias=False)
    case.scale[1234] = 255
    values, ids, log_sum = _call(kernels, case, kernels.pack(case.w, case.scale), 4)
    right = bool(values[:, 0].isnan().all()) and bool((ids[:, 0] == 1234).all()) and bool(log_sum.isnan().all())  # noqa: PLR2004
    return [] if right else ["a NaN logit is not on top"]
