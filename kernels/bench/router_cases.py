"""router_topk_decode against float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

NEAR = 1e-4  # of logits and of weights
MOST = 8
SIZES = ((128, 2880, 4), (32, 2880, 4), (256, 4096, 8), (5, 96, 2), (200, 7168, 1), (3, 8, 3))  # experts, hidden, k


def router_findings(g: torch.Generator, kernel: Any) -> Iterator[str]:
    """Every number of tokens, with and without the norm; ties, NaN and infinities; 100 calls to the bit."""
    package = kernel.package
    for experts, hidden, k in SIZES:
        w = (torch.randn(experts, hidden, device="cuda", generator=g) / hidden**0.5).bfloat16()
        bias = torch.randn(experts, device="cuda", generator=g).bfloat16()
        scratch = torch.zeros(package.router_topk_scratch(8, experts), dtype=torch.uint8, device="cuda")
        for m in range(1, 9):
            for norm in (False, True):
                x = (torch.randn(m, hidden, device="cuda", generator=g) * 3).bfloat16()
                gamma = torch.randn(hidden, device="cuda", generator=g).bfloat16() if norm else None
                ids, weights, normed = _call(package, (x, w), bias, gamma, (k, scratch))
                inner = x.double()
                if gamma is not None and normed is not None:
                    inner = inner * torch.rsqrt((inner * inner).mean(1, keepdim=True) + 1e-5) * gamma.double()
                    if ((normed.double() - inner).abs() > inner.abs() * 2.0**-8).any():
                        yield f"{experts, hidden, k} M {m}: the normed x is wrong"
                    inner = normed.double()
                logits = inner @ w.double().T + bias.double()
                best = logits.topk(k, -1).values
                taken = torch.gather(logits, 1, ids.long())
                if (taken - best).abs().max() > NEAR or (
                    weights.double() - torch.softmax(taken, -1)
                ).abs().max() > NEAR:
                    yield f"{experts, hidden, k} M {m} norm {norm}: wrong"
                if any(len(set(row)) < k for row in ids.tolist()):
                    yield f"{experts, hidden, k} M {m}: an expert twice"
                for _ in range(100 if m == MOST else 1):
                    again = _call(package, (x, w), bias, gamma, (k, scratch))
                    if not (torch.equal(again[0], ids) and torch.equal(again[1], weights)):
                        yield f"{experts, hidden, k} M {m}: another result"
                        break
    yield from _corners(package)


def _call(package: Any, xw: tuple[Any, Any], bias: Any, gamma: Any, sized: tuple[int, Any]) -> tuple[Any, Any, Any]:
    (x, w), (k, scratch) = xw, sized
    ids = torch.full((x.shape[0], k), -7, dtype=torch.int32, device="cuda")
    weights = torch.full((x.shape[0], k), torch.nan, device="cuda")
    normed = None if gamma is None else torch.full_like(x, torch.nan)
    also = {"bias": bias, "norm_weight": gamma, "normed": normed}
    package.router_topk_decode(x, w, ids, weights, scratch=scratch, overlap=True, **also)
    return ids, weights, normed


def _corners(package: Any) -> Iterator[str]:
    """Logits given through the bias: x is zero."""
    inf, nan = float("inf"), float("nan")
    for logits, ids, weights in (
        ([1.0, 2.0, 2.0, 0.0], [1, 2, 0], None),  # equal ones by number
        ([0.0, -0.0, 0.0, 0.0], [0, 1, 2], [1 / 3] * 3),
        ([nan, 1.0, nan, 1.0], [1, 3, 0], None),  # NaN last
        ([-inf, -inf, 5.0, -inf], [2, 0, 1], [1.0, 0.0, 0.0]),
        ([inf, 0.0, 1.0, 2.0], [0, 3, 2], [1.0, 0.0, 0.0]),
    ):
        x = torch.zeros(1, 8, device="cuda").bfloat16()
        w = torch.ones(4, 8, device="cuda").bfloat16()
        scratch = torch.zeros(package.router_topk_scratch(1, 4), dtype=torch.uint8, device="cuda")
        got, shares, _ = _call(package, (x, w), torch.tensor(logits, device="cuda").bfloat16(), None, (3, scratch))
        if got.tolist() != [ids]:
            yield f"logits {logits}: ids {got.tolist()}, wanted {ids}"
        if weights is not None and (shares - torch.tensor(weights, device="cuda")).abs().max() > NEAR:
            yield f"logits {logits}: weights {shares.tolist()}, wanted {weights}"
