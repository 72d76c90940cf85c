// What the binding tells the kernel; plain CUDA runtime types, so that the binding needs no nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sparkforge {

constexpr int kMaxDecodeTokens = 8;

// How the weights lie; see <sparkforge/mxfp4_layouts.cuh>.
enum class Layout : int { kRows = 0, kMarlin = 1, kPacked = 2 };

// Contiguous device memory on one device.
struct Mxfp4LinearDecode {
  Layout layout;
  const void* x;          // bf16 [tokens, k], 16-byte aligned
  const void* weight;     // codes, 16-byte aligned; for kPacked the scales too
  const uint8_t* scale;   // E8M0, 16-byte aligned for kMarlin; unused for kPacked
  const uint16_t* bias;   // bf16 [n], [stored_n] in Marlin's order for kMarlin, or null
  uint16_t* y;            // bf16 [tokens, n]
  int tokens;             // 1..8
  int64_t n;              // rows of the result, 1..2^31-1
  int64_t stored_n;       // rows that the layout holds: n, or n padded to a multiple of 64 for kMarlin
  int64_t k;              // a multiple of 32
  bool overlap;           // programmatic dependent launch
};

// Enqueues one kernel on the stream; allocates nothing, synchronises nothing.
cudaError_t launch(const Mxfp4LinearDecode& call, cudaStream_t stream);

}  // namespace sparkforge
