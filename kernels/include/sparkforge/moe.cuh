// Numerics and layouts of the expert kernels, on the CPU and on the GPU alike.
//
// Products run on mma.sync.m16n8k16 (bf16): 16 rows of weights are A, up to 8 tokens are the columns of B.
//
//   weights   a code becomes bf16 by moving its bits: e2m1 * 2^-126, exact, no rounding (widen).
//   tokens    are scaled by 2^100 beforehand (prescale), so that a product is x * e2m1 * 2^-26 and no bit is lost;
//             a token with a finite |x| >= 2^27 would overflow: all of it stays unscaled, its sums are 2^-100 as large
//             and are scaled back at the end (column_factor). Elements below 2^-98 may lose bits; zero, inf and NaN stay.
//   scales    a block's sum is multiplied by e8m0(s) * 2^26 and added, one fused operation (block_factor). Codes of 128
//             and above would overflow that factor: they take two steps, exact to the end; 255 is NaN.
//   sums      are fp32: in the block as the tensor core sums, then by block, warp and part in an order that the shapes
//             and the number of multiprocessors decide; never by who comes first.
#pragma once

#include "mxfp4_mma.cuh"

namespace sparkforge::moe {

using mxfp4::from_bits;
using mxfp4::to_bits;

constexpr int kTokens = 8;        // columns of an MMA
constexpr int kRows = 64;         // rows of a tile: four A fragments
constexpr int kUnit = 64;         // k of a unit: two blocks that have a scale each
constexpr int kUnitBytes = kRows * kUnit / 2;
constexpr int kPairs = kRows / 2; // gate/up: the tile's rows 2j and 2j + 1 are gate and up of one output

enum class Layout : int { kMarlin = 0, kCutlass = 1 };

// ---------------------------------------------------------------------------------------------------- weights and x

// Powers of two that a kernel gets as an argument: a multiplication by a number that the compiler does not know stays on
// the multiply-add units, a shift would go to the integer units, which are the busy ones here.
struct Powers {
  uint32_t two2 = 1u << 2, two4 = 1u << 4, two6 = 1u << 6, two23 = 1u << 23;
};

// mxfp4::widen_nibbles, bit for bit.
SPARKFORGE_HD void widen(uint32_t word, uint32_t (&pair)[4], const Powers& powers) {
  constexpr uint32_t kCarry = 0x7e007e00u;
  const uint32_t moved = word >> 6;
  pair[0] = ((word & 0x000f000fu) * powers.two6 + kCarry) & mxfp4::kPairBits;
  pair[1] = ((word & 0x00f000f0u) * powers.two2 + kCarry) & mxfp4::kPairBits;
  pair[2] = ((moved & 0x003c003cu) * powers.two4 + kCarry) & mxfp4::kPairBits;
  pair[3] = (word & 0x80008000u) | (moved & 0x01c001c0u);
}

// bf16 bits of a finite |x| that 2^100 would make overflow (2^27 or more).
SPARKFORGE_HD bool too_big(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fffu;
  return magnitude >= 0x4d00u && magnitude < 0x7f80u;
}

// bf16 bits of x * 2^100; exact for what is not too_big.
SPARKFORGE_HD uint32_t prescale(uint32_t bits) { return to_bits(mxfp4::bf16_to_float(bits) * 0x1p100f) >> 16; }

SPARKFORGE_HD float column_factor(bool big) { return big ? 0x1p100f : 1.0f; }

// e8m0(s) * 2^26 for s < 128.
SPARKFORGE_HD float block_factor(uint32_t scale, const Powers& powers) { return from_bits(scale * powers.two23 + (26u << 23)); }

// Whether one of four scales is 128 or more: then sum * kLargeStep * large_factor(s), two exact steps, for every scale.
SPARKFORGE_HD bool any_large(uint32_t four) { return (four & 0x80808080u) != 0u; }

constexpr float kLargeStep = 0x1p26f;

// e8m0(s) without a branch.
SPARKFORGE_HD float large_factor(uint32_t scale) {
  const uint32_t bits = scale == 0u ? 0x00400000u : scale << 23;
  return from_bits(scale == 255u ? 0x7fc00000u : bits);
}

// gate * sigmoid(alpha * gate) * (up + 1), gate at most limit, up within +-limit; NaN stays NaN.
// vLLM 0.21: csrc/activation_kernels.cu, swigluoai_and_mul (which lets a NaN become the limit).
SPARKFORGE_HD float swiglu_oai(float gate, float up, float alpha, float limit) {
  gate = gate > limit ? limit : gate;
  up = up > limit ? limit : (up < -limit ? -limit : up);
  return (up + 1.0f) * gate / (1.0f + expf(-gate * alpha));
}

// ------------------------------------------------------------------------------------------------------- positions

// Where element k of a block of 32 stands among B's fragments: lane 4 g + t of token g holds, for t = 0..3, eight bf16
// in this order (b0 and b1 of the first MMA, b0 and b1 of the second).
struct Position {
  int t;
  int place;  // 0..7
};

SPARKFORGE_HD Position position(Layout layout, int k) {
  if (layout == Layout::kMarlin) return {(k & 7) >> 1, ((k >> 4) << 2) + (((k >> 3) & 1) << 1) + (k & 1)};
  return {k >> 3, ((k & 3) << 1) + ((k >> 2) & 1)};
}

// Its inverse: which k stands at `place` of lane t.
SPARKFORGE_HD int element(Layout layout, int t, int place) {
  if (layout == Layout::kMarlin) return ((place >> 2) << 4) + (((place >> 1) & 1) << 3) + 2 * t + (place & 1);
  return 8 * t + ((place & 1) << 2) + (place >> 1);
}

// Marlin's order of biases (marlin_permute_bias): where the bias of a row stands.
SPARKFORGE_HD int64_t marlin_bias(int64_t row) {
  return (row & ~int64_t{31}) + 8 * ((row & 7) >> 1) + 2 * ((row & 31) >> 3) + (row & 1);
}

// Marlin's order of scales within 64 rows: lane g reads eight bytes, byte j is row g + 8 * marlin_scale_row(j).
SPARKFORGE_HD int marlin_scale_row(int j) { return (j & 4) | ((j & 1) << 1) | ((j >> 1) & 1); }

// CUTLASS's scales (128x4 swizzle): byte of row m, block b of 32; `blocks4` is ceil(K / 128).
SPARKFORGE_HD int64_t swizzled_scale(int64_t m, int64_t b, int64_t blocks4) {
  return ((m >> 7) * blocks4 + (b >> 2)) * 512 + (m & 31) * 16 + ((m >> 5) & 3) * 4 + (b & 3);
}

// ------------------------------------------------------------------------------------------------------ shares of work

// `units` cut into `parts` runs, the first ones longer by one where it does not come out even; parts <= units.
struct Shares {
  int each, longer;

  SPARKFORGE_HD Shares(int units, int parts) : each(units / parts), longer(units - units / parts * parts) {}

  // First unit of a part; part p takes [first(p), first(p + 1)).
  SPARKFORGE_HD int first(int part) const { return part * each + (part < longer ? part : longer); }

  // The part that takes a unit.
  SPARKFORGE_HD int part_of(int unit) const {
    const int of_longer = longer * (each + 1);
    return unit < of_longer ? unit / (each + 1) : longer + (unit - of_longer) / each;
  }
};

}  // namespace sparkforge::moe
