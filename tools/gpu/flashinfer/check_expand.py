"""The kernel that copies tokens to their experts, on sm_90: as it is, and quantizing to MXFP8 (F-09).

    python check_expand.py --tree <patched sources> [--json result.json] [--libraries <folder>]

As the tree has it (`guarded`): BF16 rows and FP8 rows arrive at their places, byte for byte; what quantizes returns
nothing below sm_100 and must be seen to. With the guards of two device functions opened (expand_build.py): MXFP8 bytes
and E8M0 scale factors of BF16 and FP16 rows against quantization written here in torch from its definition, in the
128x4 layout of the GEMM, each expert's block on its own, zeros where K is padded; FP8 rows with the scale factors that
came with them. Rows span the range of the type: zero blocks, blocks whose scale is not representable, maxima that are
448 times a power of two. Then faults are planted in what the kernel wrote, and the same comparison must see each: a
scale rounded down, a neighbour's scale, scales laid out linearly, a byte off by one, a row that is another's. Exit
status 1 if a byte is wrong or a fault is not seen (verdicts.py).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).parent))

import expand_build
from verdicts import EXPAND_FAULTS, expand

from sparkforge.results.provenance import Run

FP8, BLOCK, POISON = torch.float8_e4m3fn, 32, 0xA5
SHAPES = [
    # tokens, top_k, experts, hidden
    (1, 4, 128, 2944), (2, 4, 128, 2880), (7, 4, 128, 2944), (64, 4, 128, 2944), (300, 4, 128, 2944), (300, 2, 4, 2880),
    (129, 1, 1, 128), (1000, 4, 32, 4096), (33, 8, 16, 160), (5, 4, 8, 32),
]  # fmt: skip


class Routing:
    """Which row of the input each row of the output is, and where the experts begin."""

    def __init__(self, tokens: int, top_k: int, experts: int, random: torch.Generator) -> None:
        weights = torch.ones(experts, device="cuda")
        if experts > 2 * top_k:
            weights[-experts // 4 :] = 0  # experts without a token
        chosen = torch.multinomial(weights.expand(tokens, -1), top_k, generator=random)  # [tokens, top_k]
        flat = chosen.T.reshape(-1)  # expanded row: slot * tokens + token
        self.source = flat.sort(stable=True).indices.int()
        counts = torch.bincount(flat, minlength=experts)
        self.first = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        self.token = self.source.long() % tokens
        self.expert = flat[self.source.long()]
        self.within = torch.arange(len(flat), device="cuda") - self.first[self.expert]
        self.scales = torch.rand(tokens, top_k, device="cuda", generator=random)
        self.permuted_scales = self.scales.T.reshape(-1)[self.source.long()]


def two_to(power: torch.Tensor) -> torch.Tensor:
    """2**power in float64, exactly, for -1022 <= power <= 1023."""
    return ((power.long() + 1023) << 52).view(torch.float64)


def rows(tokens: int, hidden: int, dtype: torch.dtype, random: torch.Generator) -> torch.Tensor:
    """Numbers over the range of the type, a block at a time; some blocks are zero, some have a maximum of 448 * 2**n.

    Left out are blocks with a scale that is normal in float32 and elements that are not: the kernel takes those for zeros.
    """
    blocks = torch.randn(tokens, hidden // BLOCK, BLOCK, device="cuda", generator=random)
    low, high = (-100, 120) if dtype == torch.bfloat16 else (-24, 12)
    exponent = torch.randint(low, high, blocks.shape[:2], device="cuda", generator=random)
    if dtype == torch.bfloat16:
        exponent = torch.where(exponent < -90, exponent - 33, exponent)  # scales that are too small
    kind = torch.randint(0, 8, blocks.shape[:2], device="cuda", generator=random)
    exponent = torch.where(kind < 4, torch.zeros_like(exponent), exponent)  # half of them as activations are
    blocks = (blocks.double() * two_to(exponent)[..., None]).float()
    limit = torch.finfo(dtype).max
    blocks = blocks.clamp(-limit, limit)
    blocks[kind == 4] = 0
    edge = (1.75 * two_to(exponent + 2)).float()
    edged = torch.cat([edge[..., None], blocks[..., 1:].clamp(-1, 1) * edge[..., None]], dim=-1).clamp(-limit, limit)
    blocks = torch.where((kind == 5)[..., None], edged, blocks)
    return blocks.reshape(tokens, hidden).to(dtype)


def mxfp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """E4M3 bytes [rows, K], E8M0 codes [rows, K / 32], and which blocks have the maximum 448 * 2**n.

    The scale is the smallest power of two that is no less than the block's maximum / 448. Where that quotient is no
    normal number of float32 the code is 0 and the block is stored as zeros: there is no reciprocal to scale it with.
    """
    blocks = x.double().view(len(x), -1, BLOCK)
    most = blocks.abs().amax(-1)
    mantissa, exponent = torch.frexp(most / 448)  # most / 448 = mantissa * 2**exponent, 0.5 <= mantissa < 1
    power = torch.where(mantissa == 0.5, exponent - 1, exponent)
    power = torch.where(most / 448 < 2.0**-126, torch.full_like(power, -127), power)
    scaled = torch.where((power > -127)[..., None], blocks * two_to(-power)[..., None], torch.zeros_like(blocks))
    return (
        scaled.float().to(FP8).view(torch.uint8).reshape(x.shape),
        (power + 127).to(torch.uint8),
        (mantissa == 0.5) & (most > 0),
    )


def places(routing: Routing, hidden: int) -> tuple[torch.Tensor, int]:
    """Byte of the scale factor of each row and block, [rows, padded K / 32], and the bytes of all experts.

    An expert's scale factors begin at the next multiple of 128 rows after its tokens and 127 rows for each expert
    before it, and lie in blocks of 128 rows by 4.
    """
    columns = -(-hidden // 128) * 4
    ahead = routing.first[:-1] + torch.arange(len(routing.first) - 1, device="cuda") * 127
    start = (ahead + 127) // 128 * 128 * columns
    m, k = routing.within[:, None], torch.arange(columns, device="cuda")[None, :]
    inside = (m // 128 * (columns // 4) + k // 4) * 512 + m % 32 * 16 + m % 128 // 32 * 4 + k % 4
    total = int(start[-1]) + -(-(int(routing.first[-1]) + 128) // 128) * 128 * columns
    return start[routing.expert][:, None] + inside, total


class Library:
    """Functions of expand_kernel.cu, compiled."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))

    def __call__(self, name: str, x: torch.Tensor, out_dtype: torch.dtype, routing: Routing, *, sf_bytes: int = 0,
                 input_sf: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
        tokens, hidden = x.shape
        count, top_k, experts = len(routing.source), routing.scales.shape[1], len(routing.first) - 1
        out = torch.full((count, hidden * out_dtype.itemsize), POISON, dtype=torch.uint8, device="cuda")
        sf = torch.full((max(sf_bytes, 1),), POISON, dtype=torch.uint8, device="cuda")
        permuted = torch.full((count,), float("nan"), device="cuda")

        def at(tensor: torch.Tensor | None) -> ctypes.c_void_p:
            return ctypes.c_void_p(tensor.data_ptr() if tensor is not None else None)

        status = getattr(self.library, name)(
            at(x), at(out), at(routing.scales), at(permuted), at(routing.source), ctypes.c_int64(tokens),
            ctypes.c_int64(hidden), ctypes.c_int(top_k), ctypes.c_int(experts), at(routing.first),
            at(sf if sf_bytes else None), at(input_sf), ctypes.c_int(1),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )  # fmt: skip
        torch.cuda.synchronize()
        assert status == 0, f"{name}: CUDA error {status}"
        return out, sf, permuted


def swizzled(codes: torch.Tensor) -> torch.Tensor:
    """Scale factors [rows, K / 32] in blocks of 128 rows by 4, columns padded."""
    count, columns = len(codes), -(-codes.shape[1] // 4) * 4
    m, k = torch.arange(count, device="cuda")[:, None], torch.arange(codes.shape[1], device="cuda")[None, :]
    out = torch.zeros(-(-count // 128) * 128 * columns, dtype=torch.uint8, device="cuda")
    out[(m // 128 * (columns // 4) + k // 4) * 512 + m % 32 * 16 + m % 128 // 32 * 4 + k % 4] = codes
    return out


def compared(
    out: torch.Tensor, sf: torch.Tensor, given: torch.Tensor, routing: Routing, place: torch.Tensor
) -> dict[str, int]:
    """What the kernel wrote for rows that it quantized, against `mxfp8`: how many of each kind, and how many are wrong.

    Args:
        out: bytes [rows, K].
        sf: bytes of all experts' scale factors.
        given: the input rows [tokens, K].
        routing: which row is which.
        place: as `places` gives it, [rows, padded K / 32].
    """
    own = given.shape[1] // BLOCK
    want, want_sf, edge = (value[routing.token] for value in mxfp8(given))
    got_sf = sf[place[:, :own]]
    # The kernel multiplies by an approximate 1 / 448: at the edge the next power of two is right as well.
    higher = edge & (got_sf == want_sf + 1)
    again = torch.where(higher, want_sf + 1, want_sf)
    blocks = given[routing.token].double().view(len(want), own, BLOCK)
    one_higher = (blocks * two_to(127 - again.long())[..., None]).float().to(FP8).view(torch.uint8)
    bytes_ = torch.where(higher[..., None], one_higher, want.view(blocks.shape))
    zero = lambda codes: codes & 0x7F == 0  # noqa: E731  -0 and 0 are one number
    off = (out.view_as(bytes_) != bytes_) & ~(zero(out.view_as(bytes_)) & zero(bytes_))
    behind = torch.ones_like(sf, dtype=torch.bool)
    behind[place] = False
    return {
        "bytes": out.numel(), "bytes_wrong": int(off.sum()),
        "scale_factors": got_sf.numel(), "scale_factors_wrong": int((got_sf != again).sum()),
        "edge_blocks": int(edge.sum()), "edge_blocks_one_higher": int(higher.sum()),
        "padded_zeros": place[:, own:].numel(), "padded_not_zero": int((sf[place[:, own:]] != 0).sum()),
        "unwritten_behind": int((sf[behind] != POISON).sum()),
    }  # fmt: skip


def planted(
    out: torch.Tensor, sf: torch.Tensor, place: torch.Tensor, own: int
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """What the kernel wrote, with one fault each; a fault that would change nothing here is left out."""
    inside = place[:, :own]
    codes = sf[inside]

    def with_scales(changed: torch.Tensor) -> torch.Tensor:
        found = sf.clone()
        found[inside] = changed
        return found

    yield "rounded down", out, with_scales(codes - 1)
    if not torch.equal(rolled := codes.roll(1, dims=1), codes):
        yield "neighbour's scale", out, with_scales(rolled)
    linear = torch.full_like(sf, POISON)
    linear[: codes.numel()] = codes.reshape(-1)
    if not torch.equal(linear[inside], codes):
        yield "linear scales", out, linear
    one = out.clone()
    one[0, (out[0] & 0x7F).argmax()] ^= 1  # of the largest byte, so that it is no other zero
    yield "byte off by one", one, sf
    if not torch.equal(out.roll(1, dims=0), out):
        yield "copied row of another", out.roll(1, dims=0), sf


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--libraries", type=Path, default=Path("expand-libraries"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    run = Run(__file__)
    folder = options.libraries.resolve()
    for opened in (True, False):
        if not (folder / f"expand_{'opened' if opened else 'guarded'}.so").is_file():
            expand_build.compile_library(options.tree.resolve(), folder, opened=opened)
    run.compiled(folder)
    run.read([options.tree.resolve() / expand_build.HEADER])  # a copy of it is compiled
    opened, guarded = Library(folder / "expand_opened.so"), Library(folder / "expand_guarded.so")
    counts: Counter[str] = Counter(copied=0, copied_wrong=0, guarded_bytes_not_zero=0)
    seen = {name: {"cases": 0, "seen": 0} for name in EXPAND_FAULTS}
    for seed, (tokens, top_k, experts, hidden) in enumerate(SHAPES):
        random = torch.Generator(device="cuda").manual_seed(seed)
        routing = Routing(tokens, top_k, experts, random)
        x = rows(tokens, hidden, torch.bfloat16, random)
        # As it is: copies.
        codes = torch.randint(0, 0x7E, x.shape, device="cuda", generator=random, dtype=torch.uint8)
        for library in (guarded, opened):
            for name, given, dtype in (("expand_bf16", x, torch.bfloat16), ("expand_quantized", codes, FP8)):
                out, _, permuted = library(name, given, dtype, routing)
                want = given.view(torch.uint8)[routing.token]
                counts["copied"] += out.numel()
                counts["copied_wrong"] += int((out != want).sum()) + int((permuted != routing.permuted_scales).sum())
        place, total = places(routing, hidden)
        own = hidden // BLOCK
        for name, dtype in (("expand_bf16_to_mxfp8", torch.bfloat16), ("expand_half_to_mxfp8", torch.float16)):
            given = x if dtype == torch.bfloat16 else rows(tokens, hidden, dtype, random)
            out, sf, permuted = opened(name, given, FP8, routing, sf_bytes=total)
            counts.update(compared(out, sf, given, routing, place))
            counts["copied_wrong"] += int((permuted != routing.permuted_scales).sum())
            for fault, wrong_out, wrong_sf in planted(out, sf, place, own):
                found = compared(wrong_out, wrong_sf, given, routing, place)
                seen[fault]["cases"] += 1
                seen[fault]["seen"] += bool(found["bytes_wrong"] or found["scale_factors_wrong"])
            # Below sm_100 the same call leaves zeros and no scale factor.
            none, untouched, _ = guarded(name, given, FP8, routing, sf_bytes=total)
            counts["guarded_bytes_not_zero"] += int((none != 0).sum()) + int((untouched != POISON).sum())
        # FP8 rows, with the scale factors that came with them.
        given_sf = torch.randint(1, 255, (tokens, own), device="cuda", generator=random, dtype=torch.uint8)
        out, sf, _ = opened("expand_quantized", codes, FP8, routing, sf_bytes=total, input_sf=swizzled(given_sf))
        counts["copied"] += out.numel()
        counts["copied_wrong"] += int((out != codes[routing.token]).sum())
        counts["scale_factors"] += place[:, :own].numel()
        counts["scale_factors_wrong"] += int((sf[place[:, :own]] != given_sf[routing.token]).sum())
        counts["padded_zeros"] += place[:, own:].numel()
        counts["padded_not_zero"] += int((sf[place[:, own:]] != 0).sum())
    result = {
        "check": "expand", "device": torch.cuda.get_device_name(), "capability": list(torch.cuda.get_device_capability()),
        "torch": torch.__version__, "cuda": torch.version.cuda, "shapes": SHAPES, "counts": dict(counts), "planted": seen,
    }  # fmt: skip
    failures = expand(result)
    print(json.dumps(counts))
    for failure in failures:
        print(f"FAILED {failure}")
    if options.json:
        run.write(options.json, result)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
