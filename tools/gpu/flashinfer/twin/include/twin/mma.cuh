// The block-scaled MMA m16n8k32 of SM12x (FP8 x FP4 with a scale of UE8M0 for 32 elements) in software, for GPUs that
// lack it. Same lanes, same registers: rows and columns lie in a warp as for any m16n8k32 of bytes (PTX ISA, "Matrix
// Fragments for mma.m16n8k32"), the scale of row i < 8 comes from lane 4 i, that of row i + 8 from lane 4 i + 1, that
// of column j from lane 4 j (scale_vec::1X, thread-id 0, byte-id 0). FP4 stands in the middle of its byte, 00ABCD00.
//
// The arithmetic is a model: the 32 products are summed as integers, exactly, scaled, added to c as doubles and rounded
// once to FP32. What the hardware does inside is not documented; this twin says nothing about it.
#pragma once

#include <cstdint>

namespace sparkforge::twin {

// In units of 1/2.
__host__ __device__ inline int e2m1_halves(uint32_t nibble) {
  int const magnitude = (0xC8643210u >> (4 * (nibble & 7))) & 15;
  return nibble & 8 ? -magnitude : magnitude;
}

// In units of 1/512; the NaNs 0x7F and 0xFF have no value here, see multiply_add().
__host__ __device__ inline int e4m3_512ths(uint32_t byte) {
  int const exponent = (byte >> 3) & 15, mantissa = byte & 7;
  int const magnitude = exponent ? (8 + mantissa) << (exponent - 1) : mantissa;
  return byte & 128 ? -magnitude : magnitude;
}

#ifdef __CUDACC__  // host compilers read this too
// 2^-10, the unit of the sum of products, times both scales; 255 is NaN.
__device__ inline double unit(uint32_t scale_a, uint32_t scale_b) {
  uint32_t const exponent = 1023 - 10 + scale_a + scale_b - 2 * 127;
  return scale_a == 255 || scale_b == 255 ? __longlong_as_double(0x7FF8000000000000ll)
                                          : __hiloint2double(int(exponent << 20), 0);
}

// a b + c of one lane; FP4 is operand A where `fp4_is_a`, else operand B. Not inlined: a tile has up to 256 of them.
template <bool fp4_is_a>
__device__ __noinline__ float4 multiply_add(uint4 a, uint2 b, float4 c, uint32_t scale_a, uint32_t scale_b) {
  constexpr uint32_t all = 0xFFFFFFFFu;
  int const lane = threadIdx.x % 32, quad = lane & ~3, column = 2 * (lane & 3);
  auto value = [](bool fp4, uint32_t word, int byte) {
    uint32_t const code = (word >> (8 * byte)) & 255;
    return fp4 ? e2m1_halves(code >> 2) : e4m3_512ths(code);
  };
  int dot[2][2] = {};
  bool nan[2][2] = {};
#pragma unroll
  for (int holder = 0; holder < 4; ++holder) {  // of a quarter of the depth
    uint32_t const left[2][2] = {{__shfl_sync(all, a.x, quad + holder), __shfl_sync(all, a.z, quad + holder)},
                                 {__shfl_sync(all, a.y, quad + holder), __shfl_sync(all, a.w, quad + holder)}};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      uint32_t const right[2] = {__shfl_sync(all, b.x, 4 * (column + j) + holder),
                                 __shfl_sync(all, b.y, 4 * (column + j) + holder)};
#pragma unroll
      for (int byte = 0; byte < 8; ++byte) {
        uint32_t const word = right[byte / 4];
        int const factor = value(!fp4_is_a, word, byte % 4);
        bool const factor_nan = fp4_is_a && ((word >> (8 * (byte % 4))) & 127) == 127;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          dot[i][j] += value(fp4_is_a, left[i][byte / 4], byte % 4) * factor;
          nan[i][j] |= factor_nan || (!fp4_is_a && ((left[i][byte / 4] >> (8 * (byte % 4))) & 127) == 127);
        }
      }
    }
  }
#if SPARKFORGE_PLANTED == 4  // the scales of rows i and i + 8 swapped
  int const of_upper = 1;
#else
  int const of_upper = 0;
#endif
  uint32_t const rows[2] = {__shfl_sync(all, scale_a, quad + of_upper),
                            __shfl_sync(all, scale_a, quad + 1 - of_upper)};
  uint32_t const columns[2] = {__shfl_sync(all, scale_b, 4 * column), __shfl_sync(all, scale_b, 4 * column + 4)};
  auto sum = [&](int i, int j, float c) {
    double const exact = fma(double(dot[i][j]), unit(rows[i], columns[j]), double(c));
    return nan[i][j] ? __int_as_float(0x7FC00000) : __double2float_rn(exact);
  };
  return {sum(0, 0, c.x), sum(0, 1, c.y), sum(1, 0, c.z), sum(1, 1, c.w)};
}
#endif

// The same in the atom's words.
template <bool fp4_is_a>
__host__ __device__ inline void mma(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3,
                                    uint8_t scale_a, uint8_t scale_b) {
#ifdef __CUDA_ARCH__
  float4 const d = multiply_add<fp4_is_a>({a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}, scale_a, scale_b);
  d0 = d.x, d1 = d.y, d2 = d.z, d3 = d.w;
#endif
}

}  // namespace sparkforge::twin
