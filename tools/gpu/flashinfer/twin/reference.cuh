// What the GEMM should give, computed from the plain matrices: one thread an output, no tiles, no shared memory. Codes
// are decoded by CUDA's own conversions, scales are looked up by the documented 128x4 order, not by CuTe's layouts.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>

#include <cstdint>

// Where the scale of (row, block of 32) lies among `blocks` blocks a row.
__host__ __device__ inline int64_t scale_at(int64_t row, int64_t block, int64_t blocks) {
  return ((row / 128) * ((blocks + 3) / 4) + block / 4) * 512 + (row % 32) * 16 + (row % 128) / 32 * 4 + block % 4;
}

__device__ inline double e4m3(uint8_t code) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3))); }
__device__ inline double e2m1(uint8_t code) { return __half2float(__half(__nv_cvt_fp4_to_halfraw(code, __NV_E2M1))); }
__device__ inline double ue8m0(uint8_t code) { return __bfloat162float(__nv_bfloat16(__nv_cvt_e8m0_to_bf16raw(code))); }

// Per output: the accumulator as the twin rounds it (to FP32 after each 32 of depth, in order), the exact sum, and the
// sum of the magnitudes of its terms of 32.
struct Sum {
  float model;
  double exact, magnitude;
};

struct Plain {
  int64_t rows, n, k;
  uint8_t const *activations, *weights, *activation_scales, *weight_scales;
  int const* expert;            // [rows]
  int64_t const* scales_start;  // [experts]
  int64_t const* first_row;     // [experts + 1]
};

__global__ void reference(Plain p, Sum* sums) {
  __shared__ double left[256], right[16];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) left[i] = e4m3(i);
  if (threadIdx.x < 16) right[threadIdx.x] = e2m1(threadIdx.x);
  __syncthreads();
  int64_t const index = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= p.rows * p.n) return;
  int64_t const row = index / p.n, column = index % p.n, blocks = p.k / 32;
  int const expert = p.expert[row];
  int64_t const weight_row = expert * p.n + column, padded = (p.n + 127) / 128 * 128;
  auto const* scales_a = p.activation_scales + p.scales_start[expert];
  auto const* scales_w = p.weight_scales + expert * padded * ((blocks + 3) / 4 * 4);
  Sum sum{};
  for (int64_t block = 0; block < blocks; ++block) {
    auto const* a = reinterpret_cast<uint4 const*>(p.activations + row * p.k + block * 32);
    auto const* w = reinterpret_cast<uint4 const*>(p.weights + weight_row * p.k + block * 32);
    double dot = 0;
    for (int half = 0; half < 2; ++half) {
      uint4 const x = a[half], y = w[half];
      uint32_t const xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
      for (int word = 0; word < 4; ++word) {
        for (int byte = 0; byte < 4; ++byte) {
          dot += left[(xs[word] >> (8 * byte)) & 255] * right[(ys[word] >> (8 * byte)) & 15];
        }
      }
    }
    double const scale = ue8m0(scales_a[scale_at(row - p.first_row[expert], block, blocks)]) *
                         ue8m0(scales_w[scale_at(column, block, blocks)]);
    sum.model = __double2float_rn(fma(dot, scale, double(sum.model)));
    sum.exact += dot * scale;
    sum.magnitude += fabs(dot * scale);
  }
  sums[index] = sum;
}

// What a comparison found. `wrong`: bits differ from the model; `beyond`: off the exact value by more than the bound.
struct Found {
  unsigned long long compared, wrong, beyond, inexact;
  double worst;  // error over bound
  long long first;
};

constexpr double kHalfUlp = 1.0 / 256;      // of BF16, relative: 8 bits of significand, rounded to nearest
constexpr double kStep = 1.0 / (1 << 24);   // of FP32

__device__ inline double bound_of_sum(Sum const& sum, int64_t k) { return (k / 32 + 1) * kStep * sum.magnitude; }

__device__ inline void note(Found* found, long long index, bool wrong, double error, double bound) {
  atomicAdd(&found->compared, 1ull);
  if (wrong) {
    atomicAdd(&found->wrong, 1ull);
    atomicMin(&found->first, index);
  }
  if (!(error <= bound)) atomicAdd(&found->beyond, 1ull);
  if (error > 0) atomicAdd(&found->inexact, 1ull);
  if (bound > 0 && error / bound > 0) {
    atomicMax(reinterpret_cast<unsigned long long*>(&found->worst),
              static_cast<unsigned long long>(__double_as_longlong(error / bound)));
  }
}

// Output [rows, n], no fusion: BF16 of alpha times the sum.
__global__ void judge_rows(Plain p, Sum const* sums, float const* alpha, __nv_bfloat16 const* output, Found* found) {
  int64_t const index = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= p.rows * p.n) return;
  Sum const sum = sums[index];
  float const factor = alpha ? alpha[p.expert[index / p.n]] : 1.f;
  __nv_bfloat16 const wanted = __float2bfloat16_rn(__fmul_rn(factor, sum.model)), got = output[index];
  double const exact = double(factor) * sum.exact, of_sum = fabs(double(factor)) * bound_of_sum(sum, p.k);
  note(found, index, __bfloat16_as_ushort(wanted) != __bfloat16_as_ushort(got),
       fabs(double(__bfloat162float(got)) - exact), kHalfUlp * (fabs(exact) + of_sum) + of_sum);
}

struct Finalize {
  int64_t tokens, hidden;  // the output is [tokens, hidden], hidden <= n
  int top_k;
  int const* row;  // [top_k * tokens]: of the i-th expert of a token, at i * tokens + token
  float const *alpha, *router_scales;
  __nv_bfloat16 const* bias;  // [experts, n] or null
};

// FINALIZE: the weighted sum over the experts of a token. Rows are added in whatever order the CTAs come, each time
// rounded to BF16, so an output must be what one of the orders gives.
__global__ void judge_tokens(Plain p, Sum const* sums, Finalize f, __nv_bfloat16 const* output, Found* found) {
  int64_t const index = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= f.tokens * f.hidden) return;
  int64_t const token = index / f.hidden, column = index % f.hidden;
  __nv_bfloat16 terms[4];
  double exact = 0, bound = 0, magnitude = 0;
  for (int i = 0; i < f.top_k; ++i) {
    int64_t const row = f.row[i * f.tokens + token];
    int const expert = p.expert[row];
    Sum const sum = sums[row * p.n + column];
    float const factor = f.alpha ? f.alpha[expert] : 1.f, weight = f.router_scales[row];
    float const bias = f.bias ? __bfloat162float(f.bias[expert * p.n + column]) : 0.f;
    terms[i] = __float2bfloat16_rn(__fmul_rn(weight, fmaf(factor, sum.model, bias)));
    double const plain = double(factor) * sum.exact + bias, value = weight * plain;
    double const of_sum = weight * (fabs(double(factor)) * bound_of_sum(sum, p.k) + 2 * kStep * fabs(plain));
    exact += value;
    bound += kHalfUlp * (fabs(value) + of_sum) + of_sum;
    magnitude += fabs(value);
  }
  bound += (f.top_k - 1) * kHalfUlp * 1.1 * magnitude;
  unsigned short const got = __bfloat16_as_ushort(output[index]);
  bool right = false;
  for (int order = 0; order < (f.top_k == 1 ? 1 : f.top_k == 2 ? 2 : 24); ++order) {
    int rest[4] = {0, 1, 2, 3}, digits = order;
    __nv_bfloat16 sum = __float2bfloat16_rn(0.f);
    for (int left = f.top_k; left > 0; --left) {
      int const pick = digits % left;
      digits /= left;
      __nv_bfloat16 const term = terms[rest[pick]];
      sum = left == f.top_k ? term : __hadd_rn(sum, term);
      rest[pick] = rest[left - 1];
    }
    // The first addition is to +0: it makes +0 of -0.
    unsigned short const bits = __bfloat16_as_ushort(sum);
    right |= got == bits || ((got & 0x7FFF) == 0 && (bits & 0x7FFF) == 0);
  }
  note(found, index, !right, fabs(double(__bfloat162float(output[index])) - exact), bound);
}
