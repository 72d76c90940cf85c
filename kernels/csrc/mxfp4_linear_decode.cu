// y[M, N] = x[M, K] W^T + b for M = 1..8: a GEMV that reads every weight once.
//
// Bytes:       N K / 2 codes + N K / 32 scales + 2 (M K + N + M N); at M = 1 the first two are 4.25 bits a weight
//              (qkv of gpt-oss-120b, 5120 x 2880: 7.83 MB, 28.7 us at 273 GB/s).
// Operations:  2 M N K, on FMA units in fp32.
//
// Shape:       a warp owns kRows rows of W; lane l takes blocks l, l + 32, ... of 32 weights, 16 bytes a load.
// Sums:        a block's dot product in fp32 (dot8), scaled and added by one FMA in block order, lanes added as a
//              butterfly 16, 8, 4, 2, 1, then the bias, then one rounding to bf16. The order depends on neither M
//              nor the row, so a token's result does not depend on the tokens beside it.
#include "mxfp4_linear_decode.h"

#include <sparkforge/mxfp4.cuh>

namespace sparkforge {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 4;
constexpr int kRows = 2;  // to a warp: each x that was loaded and widened is used for two rows
constexpr unsigned kAllLanes = 0xffffffffu;

// What the register file bears without spills: 64, 96 and 128 registers a thread on SM121.
constexpr int blocks_per_sm(int tokens) { return tokens <= 2 ? 8 : tokens <= 4 ? 5 : 4; }

__device__ __forceinline__ uint32_t word_of(const uint4& block, int index) {
  return index == 0 ? block.x : index == 1 ? block.y : index == 2 ? block.z : block.w;
}

}  // namespace

// Not in the unnamed namespace: its mangled name would carry a hash that differs from build to build.

template <int kTokens>
__global__ void __launch_bounds__(kWarp* kWarps, blocks_per_sm(kTokens))
    mxfp4_linear_decode_kernel(const uint4* __restrict__ x, const uint4* __restrict__ weight,
                               const uint8_t* __restrict__ scale, const uint16_t* __restrict__ bias,
                               uint16_t* __restrict__ y, int64_t n, int blocks) {
  using namespace mxfp4;
  const int lane = threadIdx.x % kWarp;
  const int64_t first = (int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp) * kRows;
  if (first >= n) return;

  int64_t base[kRows];  // first block of each row; a row past the end reads the last one and stores nothing
#pragma unroll
  for (int r = 0; r < kRows; ++r) base[r] = (first + r < n ? first + r : n - 1) * blocks;

  float acc[kRows][kTokens] = {};
  for (int block = lane; block < blocks; block += kWarp) {
    uint4 codes[kRows];
    uint32_t exponent[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      codes[r] = __ldcs(weight + base[r] + block);  // read once: leave the caches to x
      exponent[r] = __ldcs(scale + base[r] + block);
    }
    float even[kRows][kTokens] = {};
    float odd[kRows][kTokens] = {};
#pragma unroll
    for (int word = 0; word < kWordsPerBlock; ++word) {
      float w[kRows][kCodesPerWord];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const uint32_t eight = word_of(codes[r], word);
#pragma unroll
        for (int k = 0; k < kCodesPerWord; ++k) w[r][k] = e2m1(eight, 4 * k);
      }
#pragma unroll
      for (int m = 0; m < kTokens; ++m) {
        const uint4 packed = __ldg(x + (int64_t{m} * blocks + block) * kWordsPerBlock + word);
        float value[kCodesPerWord];
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) unpack_bf16x2(word_of(packed, pair), value[2 * pair], value[2 * pair + 1]);
#pragma unroll
        for (int r = 0; r < kRows; ++r) dot8(w[r], value, even[r][m], odd[r][m]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int m = 0; m < kTokens; ++m) acc[r][m] = add_block(acc[r][m], exponent[r], even[r][m] + odd[r][m]);
  }

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = first + r;
#pragma unroll
    for (int m = 0; m < kTokens; ++m) {
      float sum = acc[r][m];
#pragma unroll
      for (int distance = kWarp / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
      if (lane == 0 && row < n) {
        if (bias != nullptr) sum += bf16_to_float(bias[row]);
        y[int64_t{m} * n + row] = float_to_bf16(sum);
      }
    }
  }
}

namespace {

template <int kTokens>
cudaError_t launch_for(const Mxfp4LinearDecode& call, cudaStream_t stream) {
  constexpr int64_t kRowsPerBlock = int64_t{kWarps} * kRows;
  const auto* x = static_cast<const uint4*>(call.x);
  const auto* weight = static_cast<const uint4*>(call.weight);
  int64_t n = call.n;
  int blocks = static_cast<int>(call.k / mxfp4::kBlock);
  void* arguments[] = {&x,       &weight, const_cast<const uint8_t**>(&call.scale), const_cast<const uint16_t**>(&call.bias),
                       const_cast<uint16_t**>(&call.y), &n, &blocks};
  const dim3 grid(static_cast<unsigned>((call.n + kRowsPerBlock - 1) / kRowsPerBlock));
  // The status of this launch and of nothing before it, which <<< >>> and cudaGetLastError() would not give.
  return cudaLaunchKernel(reinterpret_cast<const void*>(mxfp4_linear_decode_kernel<kTokens>), grid,
                          dim3(kWarp * kWarps), arguments, 0, stream);
}

}  // namespace

cudaError_t launch(const Mxfp4LinearDecode& call, cudaStream_t stream) {
  switch (call.tokens) {
    case 1: return launch_for<1>(call, stream);
    case 2: return launch_for<2>(call, stream);
    case 3: return launch_for<3>(call, stream);
    case 4: return launch_for<4>(call, stream);
    case 5: return launch_for<5>(call, stream);
    case 6: return launch_for<6>(call, stream);
    case 7: return launch_for<7>(call, stream);
    case kMaxDecodeTokens: return launch_for<kMaxDecodeTokens>(call, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparkforge
