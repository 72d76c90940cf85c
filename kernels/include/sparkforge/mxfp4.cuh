// MXFP4 numerics (OCP Microscaling Formats v1.0): E2M1 codes, 32 to a block, one E8M0 scale a block.
//
// Everything here is __host__ __device__ and uses explicit operations only, so a CPU and any CUDA GPU give the
// same bits (device code must be built without --use_fast_math and --ftz=true; subnormals are kept).
//
//   e2m1(c)      c = s e e m.  (-1)^s * {0, 0.5, 1, 1.5, 2, 3, 4, 6}[c & 7];  8 is -0.
//   e8m0(s)      2^(s - 127), an exponent and nothing else;  0 is 2^-127 (subnormal in fp32), 255 is NaN.
//   decode(c,s)  e2m1(c) * e8m0(s): exact, or +-inf where it is 2^128 or more. A zero stays zero at every scale but 255.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define SPARKFORGE_HD __host__ __device__ __forceinline__
#else
#define SPARKFORGE_HD inline
#endif

namespace sparkforge::mxfp4 {

constexpr int kBlock = 32;           // elements that share a scale
constexpr int kBlockBytes = 16;      // their codes: one 16-byte load
constexpr int kCodesPerWord = 8;     // codes in 32 bits, lowest nibble first

SPARKFORGE_HD float from_bits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

SPARKFORGE_HD uint32_t to_bits(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

// Value of the E2M1 code at bit `shift` of a word.
//
// Its two exponent bits and its mantissa bit go to the place of fp32's lowest exponent and highest mantissa bits;
// that is the value times 2^-126, for subnormal codes too, and 2^126 brings it back exactly.
SPARKFORGE_HD float e2m1(uint32_t word, int shift = 0) {
  const uint32_t code = word >> shift;
  return from_bits(((code & 8u) << 28) | ((code & 7u) << 22)) * 0x1p126f;
}

// 2^(scale - 127); NaN for 255.
SPARKFORGE_HD float e8m0(uint32_t scale) {
  if (scale == 255u) return from_bits(0x7fc00000u);
  return from_bits(scale == 0u ? 0x00400000u : scale << 23);
}

// One weight: the low four bits of `code`, under a scale.
SPARKFORGE_HD float decode(uint32_t code, uint32_t scale) { return e2m1(code) * e8m0(scale); }

SPARKFORGE_HD float bf16_to_float(uint32_t bits) { return from_bits(bits << 16); }

// Round to nearest, ties to even; overflow is inf; every NaN is 0x7fff, as __float2bfloat16_rn gives it.
SPARKFORGE_HD uint16_t float_to_bf16(float value) {
  const uint32_t bits = to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Two bf16 of one little-endian word, the lower one first.
SPARKFORGE_HD void unpack_bf16x2(uint32_t word, float& low, float& high) {
  low = from_bits(word << 16);
  high = from_bits(word & 0xffff0000u);
}

}  // namespace sparkforge::mxfp4
