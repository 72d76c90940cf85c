"""vLLM's own Marlin experts, from the extension module of its published wheel, as vLLM 0.21 calls them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from graphs import Work

BLOCK = 8  # tokens of a block, what vLLM chooses for so few
E2M1_TYPE = 2 | 1 << 8 | 1 << 16 | 1 << 49  # vllm.scalar_type.scalar_types.float4_e2m1f.id
NOTE = (
    "two calls of moe_wna16_marlin_gemm, moe_align_block_size before, torch.sum after, as fused_marlin_moe does; "
    "the activation between them is left out, since it is in another module: what is timed is less than what vLLM does"
)


class MarlinMoe:
    """The ops of _moe_C, and calls of them on our packed experts."""

    def __init__(self, module: Path) -> None:
        torch.ops.load_library(str(module.resolve()))
        self.ops = torch.ops._moe_C  # noqa: SLF001  that is the module's name
        self.workspace = torch.zeros(
            4 * torch.cuda.get_device_properties(0).multi_processor_count, dtype=torch.int32
        ).cuda()
        self.note = {"what": NOTE, "sha256": hashlib.sha256(module.read_bytes()).hexdigest()}

    def works(self, layers: Any, tokens: tuple[int, ...]) -> Iterator[Work]:
        """Distinct experts, as ours."""
        for m in tokens:
            ids = [layers.ids(m, shared=False) for _ in layers.packed]
            ours = layers.work("", m, overlap=True)
            calls = [self.call(p, m, one)[0] for p, one in zip(layers.packed, ids, strict=True)]
            yield Work("vLLM 0.21 Marlin experts", "without the activation", m, ours.bytes, calls)

    def call(self, p: Any, m: int, ids: torch.Tensor, x: Any = None, act: Any = None) -> tuple[Callable[[], Any], Any]:
        """One layer; hidden and inter are padded, as vLLM pads them. Also where gate and up and the result lie."""
        hidden, inter, k = p.sizes.hidden_stored, p.sizes.inter_stored, ids.shape[1]
        x = torch.randn(m, hidden, device="cuda").bfloat16() if x is None else x
        act = torch.randn(m * k, inter, device="cuda").bfloat16() if act is None else act
        weights = torch.full((m, k), 1 / k, device="cuda")
        most = min(ids.numel() * BLOCK, ids.numel() + p.sizes.experts * (BLOCK - 1))
        order = torch.empty(most, dtype=torch.int32, device="cuda")
        blocks = torch.empty(-(-most // BLOCK), dtype=torch.int32, device="cuda")
        count = torch.empty(1, dtype=torch.int32, device="cuda")
        gate_up = torch.empty(m * k, 2 * inter, device="cuda").bfloat16()
        down = torch.empty(m * k, hidden, device="cuda").bfloat16()
        out = torch.empty(m, hidden, device="cuda").bfloat16()
        e = p.sizes.experts

        def words(codes: torch.Tensor, k_of: int) -> torch.Tensor:
            return codes.view(torch.int32).view(e, k_of // 16, -1)

        def scales(codes: torch.Tensor) -> torch.Tensor:
            return codes.view(torch.float8_e8m0fnu)

        def gemm(ac: tuple[Any, Any], b: tuple[Any, Any, Any], top: int, *size: int) -> None:
            weigh = top == 1  # the second one multiplies by the routing weights
            self.ops.moe_wna16_marlin_gemm(
                *ac, *b, None, None, None, None, None, self.workspace, order, blocks, count, weights, BLOCK, top, weigh,
                E2M1_TYPE, *size, True, False, True, False, -1, -1, -1,
            )  # fmt: skip

        def run() -> None:
            self.ops.moe_align_block_size(ids, e, BLOCK, order, blocks, count, None)
            gemm((x, gate_up), (words(p.w13, hidden), p.b13, scales(p.s13)), k, m, 2 * inter, hidden)
            gemm((act, down), (words(p.w2, inter), p.b2, scales(p.s2)), 1, m * k, hidden, inter)
            torch.sum(down.view(m, k, hidden), dim=1, out=out)

        return run, (gate_up, down, out)

    def difference(self, layers: Any) -> dict[str, float]:
        """Ours against theirs on one layer, both from the same bytes; norm of the difference over the norm."""
        p, m = layers.packed[0], 4
        ids = layers.ids(m, shared=False)
        small, inter = p.sizes.hidden, p.sizes.inter
        for tensor, rows, valid in ((p.s13, p.sizes.hidden_stored, small), (p.s2, p.sizes.inter_stored, inter)):
            tensor.view(p.sizes.experts, rows // 32, -1)[:, valid // 32 :] = 0  # padding: as good as zero
        x = torch.zeros(m, p.sizes.hidden_stored, device="cuda").bfloat16()
        x[:, :small] = torch.randn(m, small, device="cuda").bfloat16() * 8
        run, (gate_up, _, _) = self.call(p, m, ids, x)
        run()
        both = gate_up[:, : 2 * inter].float()
        gate, up = both[:, 0::2].clamp(max=7.0), both[:, 1::2].clamp(-7.0, 7.0)
        act = torch.zeros(m * 4, p.sizes.inter_stored, device="cuda").bfloat16()
        act[:, :inter] = ((up + 1) * gate * torch.sigmoid(1.702 * gate)).bfloat16()
        run, (_, _, out) = self.call(p, m, ids, x, act)
        run()
        weights = torch.full((m, 4), 0.25, device="cuda")
        given = layers.call(p, m, ids, weights, overlap=False, x=x[:, :small].contiguous())
        ours = given().float()
        theirs = out[:, :small].float()
        return {"relative": ((ours - theirs).norm() / theirs.norm()).item(), "norm": theirs.norm().item()}
