"""Problems for paged attention with sinks, and their answer in float32 from the definition."""

from __future__ import annotations

import dataclasses
import itertools
import math

import torch

HEAD_DIM = 64
GROUP = 8  # query heads for each KV head, as gpt-oss has


@dataclasses.dataclass
class Case:
    """One paged problem. `qo_lengths` are the new tokens of each request, at the end of `lengths`."""

    lengths: list[int]
    qo_lengths: list[int]
    page_size: int
    layout: str
    window: int
    kv_dtype: torch.dtype
    k_scale: float
    v_scale: float
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sinks: torch.Tensor
    indptr: torch.Tensor
    indices: torch.Tensor
    last_page: torch.Tensor
    qo_indptr: torch.Tensor


def make(
    lengths: list[int],
    *,
    qo_lengths: list[int] | None = None,
    page_size: int,
    layout: str = "NHD",
    window: int = -1,
    kv_dtype: torch.dtype = torch.bfloat16,
    q_dtype: torch.dtype = torch.bfloat16,
    kv_heads: int = 8,
    seed: int = 0,
    device: str = "cuda",
    spare_pages: int = 3,
) -> Case:
    """Random keys, values and sinks. Pages lie in a random order among `spare_pages` poisoned ones."""
    generator = torch.Generator(device=device).manual_seed(seed)
    qo_lengths = qo_lengths or [1] * len(lengths)
    pages = [-(-length // page_size) for length in lengths]
    count = sum(pages) + spare_pages
    shape = (count, kv_heads, page_size, HEAD_DIM) if layout == "HND" else (count, page_size, kv_heads, HEAD_DIM)
    fp8 = kv_dtype.itemsize == 1
    # Scales that no power of two hides; the stored numbers use the range of the type.
    k_scale, v_scale = (0.0371, 0.0193) if fp8 else (1.0, 1.0)
    k, v = (
        (torch.randn(shape, generator=generator, device=device) / scale).clamp(-448, 448).to(kv_dtype)
        for scale in (k_scale, v_scale)
    )
    order = torch.randperm(count, generator=generator, device=device)
    used, unused = order[: sum(pages)], order[sum(pages) :]
    poison = torch.full((), 448.0 if fp8 else 1e4, device=device).to(kv_dtype)
    k[unused], v[unused] = poison, poison

    def offsets(values: list[int]) -> torch.Tensor:
        return torch.tensor([0, *values], dtype=torch.int32).cumsum(0).to(torch.int32).to(device)

    heads = kv_heads * GROUP
    # A sink weighs as much as all keys where it is the logarithm of their number: some heads hardly have
    # one at the longest request, and some drown the shortest.
    visible = max(lengths) if window < 0 else min(max(lengths), window + 1)
    sinks = torch.rand(heads, generator=generator, device=device) * (math.log(visible) + 2)
    return Case(
        lengths=lengths,
        qo_lengths=qo_lengths,
        page_size=page_size,
        layout=layout,
        window=window,
        kv_dtype=kv_dtype,
        k_scale=k_scale,
        v_scale=v_scale,
        q=torch.randn(sum(qo_lengths), heads, HEAD_DIM, generator=generator, device=device).to(q_dtype),
        k=k,
        v=v,
        sinks=sinks,
        indptr=offsets(pages),
        indices=used.to(torch.int32),
        last_page=torch.tensor([(n - 1) % page_size + 1 for n in lengths], dtype=torch.int32, device=device),
        qo_indptr=offsets(qo_lengths),
    )


def reference(case: Case, *, with_sinks: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [tokens, heads, dim] and base-2 logsumexp [tokens, heads], in float32.

    Softmax over the visible keys of a token and its head's sink, which has no value. Token i of n new ones,
    in a sequence of length L, stands at L - n + i and sees the keys from its position minus `window` on.
    """
    outs, lses = [], []
    indptr, row = case.indptr.tolist(), 0
    for request, (length, new) in enumerate(zip(case.lengths, case.qo_lengths, strict=True)):
        pages = case.indices[indptr[request] : indptr[request + 1]].long()
        keys, values = (
            (cache[pages].transpose(1, 2) if case.layout == "HND" else cache[pages])
            .reshape(-1, *case.sinks.reshape(-1, GROUP).shape[:1], HEAD_DIM)[:length]
            .float()
            .mul(scale)
            .repeat_interleave(GROUP, dim=1)
            for cache, scale in ((case.k, case.k_scale), (case.v, case.v_scale))
        )
        q = case.q[row : row + new].float()
        row += new
        logits = torch.einsum("qhd,khd->hqk", q, keys) * HEAD_DIM**-0.5
        position = torch.arange(length - new, length, device=q.device)[:, None]
        key = torch.arange(length, device=q.device)[None, :]
        hidden = key > position
        if case.window >= 0:
            hidden |= key < position - case.window
        logits.masked_fill_(hidden, float("-inf"))
        if with_sinks:
            sink = case.sinks.float()[:, None, None].expand(-1, new, 1)
            logits = torch.cat([logits, sink], dim=-1)
        lses.append(torch.logsumexp(logits, dim=-1).T / torch.log(torch.tensor(2.0, device=q.device)))
        weights = torch.softmax(logits, dim=-1)[..., :length]
        outs.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(outs), torch.cat(lses)


def error(case: Case, got: torch.Tensor, want: torch.Tensor) -> list[tuple[float, float]]:
    """For each request (root mean square error, largest error), relative to the same measure of `want`."""
    rows = case.qo_indptr.tolist()
    errors = []
    for first, last in itertools.pairwise(rows):
        true = want[first:last]
        off = got[first:last].float() - true
        rms = float(off.square().mean().sqrt() / true.square().mean().sqrt())
        errors.append((rms, float(off.abs().max() / true.abs().max())))
    return errors
