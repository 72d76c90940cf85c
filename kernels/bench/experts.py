"""Experts in the checkpoint's form, in Marlin's and in CUTLASS's, and what a mixture of them gives in float64."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
ALPHA, LIMIT = 1.702, 7.0
NAN_SCALE = 255


@dataclass(frozen=True)
class Sizes:
    """Of one mixture: experts, hidden and intermediate size, and both as stored."""

    experts: int
    hidden: int
    inter: int
    hidden_stored: int
    inter_stored: int


def round_up(value: int, to: int) -> int:
    """The next multiple."""
    return -(-value // to) * to


def marlin_sizes(experts: int, hidden: int, inter: int) -> Sizes:
    """As vLLM 0.21's mxfp4_round_up_hidden_size_and_intermediate_size for Marlin: 2880 becomes 3072 and 2944."""
    return Sizes(experts, hidden, inter, round_up(hidden, 256), round_up(inter, 128))


def cutlass_sizes(experts: int, hidden: int, inter: int) -> Sizes:
    """The same for CUTLASS: both to a multiple of 128."""
    return Sizes(experts, hidden, inter, round_up(hidden, 128), round_up(inter, 128))


@dataclass
class Experts:
    """Checkpoint form, unpadded: codes u8 (one a byte), scales u8, biases bf16; rows of w13 are gate, up, gate, up."""

    q13: torch.Tensor  # [E, 2 I, H]
    s13: torch.Tensor  # [E, 2 I, H / 32]
    b13: torch.Tensor | None  # [E, 2 I]
    q2: torch.Tensor  # [E, H, I]
    s2: torch.Tensor  # [E, H, I / 32]
    b2: torch.Tensor | None  # [E, H]


@dataclass
class Packed:
    """What the kernel reads."""

    layout: str
    sizes: Sizes
    w13: torch.Tensor
    s13: torch.Tensor
    b13: torch.Tensor | None
    w2: torch.Tensor
    s2: torch.Tensor
    b2: torch.Tensor | None


def random_experts(
    g: torch.Generator, experts: int, hidden: int, inter: int, device: str, *, bias: bool = True
) -> Experts:
    """Weights of a size that keeps gate and up within some units for x of size 1."""

    def bits(shape: tuple[int, ...], low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high, shape, dtype=torch.uint8, device=device, generator=g)

    def normal(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, device=device, generator=g).bfloat16()

    centre = 120 - max(0, (hidden.bit_length() - 7) // 2)
    return Experts(
        bits((experts, 2 * inter, hidden), 0, 16),
        bits((experts, 2 * inter, hidden // 32), centre - 4, centre + 4),
        normal((experts, 2 * inter)) if bias else None,
        bits((experts, hidden, inter), 0, 16),
        bits((experts, hidden, inter // 32), centre - 4, centre + 4),
        normal((experts, hidden)) if bias else None,
    )


def _pad(t: torch.Tensor, *shape: int) -> torch.Tensor:
    out = t.new_zeros((t.shape[0], *shape))
    out[(slice(None), *(slice(0, n) for n in t.shape[1:]))] = t
    return out


def marlin_codes(q: torch.Tensor) -> torch.Tensor:
    """[E, N, K] codes -> u8 [E, N K / 2], as gptq_marlin_repack orders them (4 bits, no permutation).

    Tiles of 16 k by 64 n, 512 bytes each, n fastest. Word w of lane 4 g + t holds n = 16 w + g + 8 h and
    k = 2 t + 8 u + e at nibble 4 e + 2 h + u.
    """
    e, n, k = q.shape
    q = q.view(e, n // 64, 4, 2, 8, k // 16, 2, 4, 2)  # E, tile n, w, h, g, tile k, u, t, e
    q = q.permute(0, 5, 1, 4, 7, 2, 8, 3, 6).reshape(e, -1, 8)  # E, tile k, tile n, g, t, w | e, h, u
    return (q[..., 0::2] | (q[..., 1::2] << 4)).reshape(e, -1).contiguous()


def marlin_scales(s: torch.Tensor) -> torch.Tensor:
    """[E, N, K / 32] -> u8 [E, K / 32, N]: marlin_permute_scales, then mxfp4_marlin_process_scales."""
    e, n, blocks = s.shape
    order = torch.tensor([0, 16, 8, 24, 32, 48, 40, 56], device=s.device)
    index = (torch.arange(8, device=s.device)[:, None] + order[None, :]).flatten()
    return s.transpose(1, 2).reshape(e, blocks, n // 64, 64)[..., index].reshape(e, blocks, n).contiguous()


def marlin_bias(b: torch.Tensor) -> torch.Tensor:
    """[E, N] in the order of marlin_permute_bias."""
    rows = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
    return b.view(b.shape[0], -1, 32)[..., torch.tensor(rows, device=b.device)].reshape(b.shape).contiguous()


def swizzle(s: torch.Tensor) -> torch.Tensor:
    """[E, N, K / 32] -> the same bytes in CUTLASS's 128x4 order; N a multiple of 128, K of 128."""
    e, n, blocks = s.shape
    s = s.view(e, n // 128, 4, 32, blocks // 4, 4)
    return s.permute(0, 1, 4, 3, 2, 5).reshape(e, n, blocks).contiguous()


def pack(experts: Experts, layout: str) -> Packed:
    """In the layout's form, padded with zeros."""
    e, two, hidden = experts.q13.shape
    inter = two // 2
    sizes = (marlin_sizes if layout == "marlin" else cutlass_sizes)(e, hidden, inter)
    h, i = sizes.hidden_stored, sizes.inter_stored
    q13, s13 = _pad(experts.q13, 2 * i, h), _pad(experts.s13, 2 * i, h // 32)
    q2, s2 = _pad(experts.q2, h, i), _pad(experts.s2, h, i // 32)
    b13 = None if experts.b13 is None else _pad(experts.b13, 2 * i)
    b2 = None if experts.b2 is None else _pad(experts.b2, h)
    if layout == "marlin":
        b13 = None if b13 is None else marlin_bias(b13)
        b2 = None if b2 is None else marlin_bias(b2)
        return Packed(
            layout, sizes, marlin_codes(q13), marlin_scales(s13), b13, marlin_codes(q2), marlin_scales(s2), b2
        )

    def up_gate(t: torch.Tensor) -> torch.Tensor:
        return torch.cat([t[:, 1::2], t[:, 0::2]], dim=1).contiguous()

    def bytes_of(q: torch.Tensor) -> torch.Tensor:
        return (q[..., 0::2] | (q[..., 1::2] << 4)).contiguous()

    w13, s13 = bytes_of(up_gate(q13)), swizzle(up_gate(s13))
    return Packed(layout, sizes, w13, s13, None if b13 is None else up_gate(b13), bytes_of(q2), swizzle(s2), b2)


def weights(q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """float64 of codes and scales."""
    scale = torch.ldexp(torch.ones_like(s, dtype=torch.float64), s.to(torch.int64) - 127)
    scale[s == NAN_SCALE] = torch.nan
    table = torch.tensor(E2M1, dtype=torch.float64, device=q.device)
    return (table[q.long()].view(*s.shape, 32) * scale.unsqueeze(-1)).view(q.shape)


def mixture(
    x: torch.Tensor, ids: torch.Tensor, routing: torch.Tensor, experts: Experts, residual: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and how far sums may be off, float64 [M, H].

    act is rounded to bf16 as the kernel does; where sums of another order round an element of it the other way, the
    result moves by 2^-8 of that element's product: twice the largest is allowed for.
    """
    tokens, hidden = x.shape
    y = torch.zeros(tokens, hidden, dtype=torch.float64, device=x.device)
    size = torch.zeros_like(y)
    if residual is not None:
        y += residual.double()
        size += residual.double().abs() * 2.0**-14
    for expert in ids.unique().tolist():
        if not 0 <= expert < experts.q13.shape[0]:
            continue
        share = torch.where(ids == expert, routing.double(), 0.0).sum(1)
        on = (ids == expert).any(1)
        w13, w2 = weights(experts.q13[expert], experts.s13[expert]), weights(experts.q2[expert], experts.s2[expert])
        both = x[on].double() @ w13.T
        if experts.b13 is not None:
            both = both + experts.b13[expert].double()
        gate, up = both[:, 0::2].float().double(), both[:, 1::2].float().double()
        gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
        act = ((up + 1) * gate / (1 + torch.exp(-gate * ALPHA))).bfloat16().double()
        down = act @ w2.T
        if experts.b2 is not None:
            down = down + experts.b2[expert].double()
        y[on] += share[on, None] * down
        most = torch.stack([(one.abs() * w2.abs()).amax(1) for one in act])
        size[on] += share[on, None].abs() * (act.abs() @ w2.abs().T * 2.0**-14 + most * 2.0**-7)
    return y, size


def wrong(got: torch.Tensor, want: torch.Tensor, size: torch.Tensor) -> int:
    """How many bf16 outputs are outside the bound: rounding of the result, and of sums and of act on the way."""
    rounded = want.bfloat16().double()
    value = got.double()
    same = (value == rounded) | (value.isnan() & rounded.isnan())
    near = (value - want).abs() <= want.abs() * 2.0**-8 + size
    return int((~(same | near)).sum())


def sources() -> list[Path]:
    """What the kernels of experts and router are compiled from."""
    kernels = Path(__file__).resolve().parent.parent
    names = ("binding.h", "launch.h", "mxfp4_moe_decode*", "router_topk_decode*")
    found = [path for name in names for path in sorted((kernels / "csrc").glob(name))]
    return [*found, *sorted((kernels / "include" / "sparkforge").glob("*.cuh"))]
