// MXFP4 weights as the A operand of mma.sync.m16n8k16 (bf16): weights are the 16 rows, tokens are the 8 columns, so that
// 1 to 8 tokens cost the same.
//
// Numerics. A weight e2m1(c) * 2^(s - 127) is exact in bf16 for every code c and scale code s, subnormals included; where
// it is 2^128 or more it is infinite, and under s = 255 it is NaN. So weights are widened to bf16 with their scale, the
// matrix instruction forms exact products, and sums are fp32.
//
//   widen_*      eight codes of a word -> four pairs of bf16, each value times 2^-126 (the code's bits lie at the lowest
//                exponent bits and the highest mantissa bit; a code's subnormal is a bf16 subnormal).
//   scale_pair   the factor 2^(s - 1) of those pairs, twice in a word; for s <= 127, which kFast says of four scales.
//   apply_wide   the same for any s, in two exact steps.
//
// Lanes of a warp: g = lane / 4, t = lane % 4. A fragment a[0..3] of lane (g, t): rows g, g + 8, g, g + 8 at k slots 2t, 2t+1
// (a0, a1) and 2t+8, 2t+9 (a2, a3). B fragment b[0..1]: column g, the same k slots. C: rows g (c0, c1) and g + 8 (c2, c3),
// columns 2t and 2t + 1 (PTX ISA, mma.m16n8k16). Which k a slot stands for is free as long as A and B agree.
#pragma once

#include <sparkforge/mxfp4.cuh>

namespace sparkforge::mxfp4 {

constexpr uint32_t kPairBits = 0x81c081c0u;   // sign, two exponent bits and mantissa bit of two bf16
constexpr uint32_t kBeyondFast = 0x80808080u;  // set in a byte: its scale is 128 or more

SPARKFORGE_HD uint32_t rotate_right(uint32_t word, int by) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_r(word, word, by);
#else
  return (word >> by) | (word << (32 - by));
#endif
}

// Byte `index` of a word.
SPARKFORGE_HD uint32_t byte_of(uint32_t word, int index) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(word, 0, 0x4440 + index);
#else
  return (word >> (8 * index)) & 0xffu;
#endif
}

// Codes in nibble order, as rows and Marlin hold them: pair[j] = codes j (low half) and j + 4 (high half).
//
// A nibble is moved to bits 9..6 of its half; adding 0x7e00 carries a sign at bit 9 to bit 15, and the mask drops what an
// unset sign leaves. Kernels are handed the factors of the moves as parameters: for constants the compiler would put
// shifts on the integer pipe, which the masks fill already, in place of multiply-adds on the other.
struct Shifts {
  uint32_t by_6 = 64;
  uint32_t by_2 = 4;
};

SPARKFORGE_HD void widen_nibbles(uint32_t word, uint32_t (&pair)[4], const Shifts& shifts = {}) {
  constexpr uint32_t kCarry = 0x7e007e00u;
  pair[0] = ((word & 0x000f000fu) * shifts.by_6 + kCarry) & kPairBits;
  pair[1] = ((word & 0x00f000f0u) * shifts.by_2 + kCarry) & kPairBits;
  pair[2] = (((word & 0x0f000f00u) >> 2) + kCarry) & kPairBits;
  pair[3] = (word & 0x80008000u) | ((word >> 6) & 0x01c001c0u);
}

// Codes in the order of our own packing, chosen so that four shifts and five logical operations widen eight.
SPARKFORGE_HD void widen_packed(uint32_t word, uint32_t (&pair)[4]) {
  pair[0] = (word << 6) & kPairBits;
  pair[1] = rotate_right(word, 4) & kPairBits;
  pair[2] = (word << 2) & kPairBits;
  pair[3] = (word & 0x81808180u) | ((word >> 8) & 0x00400040u);
}

// The word that widen_packed takes apart: codes[2 j] and codes[2 j + 1] are the low and high half of pair j.
SPARKFORGE_HD uint32_t pack_codes(const uint8_t (&codes)[8]) {
  // Bit of the word for mantissa, exponent 0, exponent 1 and sign of the low half; the high half's stands 16 higher, but
  // for the signs of pair 1, which change places.
  constexpr int kBit[4][4] = {{0, 1, 2, 9}, {10, 11, 12, 19}, {4, 5, 6, 13}, {14, 7, 8, 15}};
  uint32_t word = 0;
  for (int i = 0; i < 8; ++i)
    for (int bit = 0; bit < 4; ++bit)
      word |= uint32_t((codes[i] >> bit) & 1u) << ((kBit[i / 2][bit] + 16 * (i % 2)) % 32);
  return word;
}

// 2^(scale - 1) as bf16 in both halves, for scale <= 127 (128 would still fit; kBeyondFast is the test).
SPARKFORGE_HD uint32_t scale_pair(uint32_t scale) { return scale * 0x00800080u + 0x3f003f00u; }

// 2^(scale - 127) as bf16 in both halves; a subnormal for 0, NaN for 255.
SPARKFORGE_HD uint32_t wide_scale_pair(uint32_t scale) {
  const uint32_t one = scale == 0 ? 0x0040u : scale == 255 ? 0x7fc0u : scale << 7;
  return one | one << 16;
}

// Products of two pairs of bf16, rounded to nearest even, subnormals kept. Exact wherever this project uses it.
SPARKFORGE_HD uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  uint32_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
#else
  const uint32_t low = float_to_bf16(bf16_to_float(a & 0xffffu) * bf16_to_float(b & 0xffffu));
  const uint32_t high = float_to_bf16(bf16_to_float(a >> 16) * bf16_to_float(b >> 16));
  return low | high << 16;
#endif
}

// A widened pair under its scale, for any scale.
SPARKFORGE_HD uint32_t apply_wide(uint32_t pair, uint32_t scale) {
  constexpr uint32_t kUnbias = 0x7e807e80u;  // 2^126
  return multiply_bf16x2(multiply_bf16x2(pair, kUnbias), wide_scale_pair(scale));
}

// A scale that is applied to many pairs; kWide false needs scale <= 127.
template <bool kWide>
struct Factor {
  uint32_t value;

  SPARKFORGE_HD explicit Factor(uint32_t scale) : value(kWide ? scale : scale_pair(scale)) {}

  SPARKFORGE_HD uint32_t operator()(uint32_t pair) const {
    return kWide ? apply_wide(pair, value) : multiply_bf16x2(pair, value);
  }
};

#if defined(__CUDACC__)
// c += A B for one warp, all of its lanes.
__device__ __forceinline__ void mma_16x8x16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                            uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
#endif

}  // namespace sparkforge::mxfp4
