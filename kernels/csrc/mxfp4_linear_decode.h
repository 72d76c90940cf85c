// What the binding tells the kernel; plain CUDA runtime types, so that the binding needs no nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sparkforge {

constexpr int kMaxDecodeTokens = 8;

// Contiguous device memory on one device.
struct Mxfp4LinearDecode {
  const void* x;          // bf16 [tokens, k], 16-byte aligned
  const void* weight;     // u8 [n, k/2], 16-byte aligned, low nibble = even k
  const uint8_t* scale;   // E8M0 [n, k/32]
  const uint16_t* bias;   // bf16 [n] or null
  uint16_t* y;            // bf16 [tokens, n]
  int tokens;             // 1..8
  int64_t n;              // 1..2^31-1
  int64_t k;              // a multiple of 32
};

// Enqueues one kernel on the stream; allocates nothing, synchronises nothing.
cudaError_t launch(const Mxfp4LinearDecode& call, cudaStream_t stream);

}  // namespace sparkforge
