// What the binding tells the kernel; plain CUDA runtime types, so that the binding needs no nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sparkforge {

constexpr int kMaxMoeTokens = 8;
constexpr int kMaxMoePairs = 64;  // tokens times experts a token

enum class MoeLayout : int { kMarlin = 0, kCutlass = 1 };

// Contiguous device memory on one device. `_stored` sizes are those of the weights with their padding.
struct Mxfp4MoeDecode {
  const uint16_t* x;         // bf16 [tokens, hidden], 16-byte aligned
  const int32_t* ids;        // [tokens, topk]; an id outside 0..experts-1 counts for nothing
  const float* weights;      // [tokens, topk]
  const uint8_t* w13;        // codes of gate and up, see kernels/README.md for both layouts
  const uint8_t* s13;        // their scales
  const uint16_t* b13;       // bf16 or null
  const uint8_t* w2;
  const uint8_t* s2;
  const uint16_t* b2;        // bf16 or null
  const uint16_t* residual;  // bf16 [tokens, hidden] or null; may be y
  uint16_t* y;               // bf16 [tokens, hidden]
  void* scratch;             // scratch_bytes() of it, zero before the first call, then the kernel's own
  int tokens, topk, experts;
  int hidden, inter;
  int hidden_stored, inter_stored;
  float alpha, limit;
};

// Bytes of scratch on a device of so many multiprocessors.
int64_t scratch_bytes(int tokens, int topk, int inter, int multiprocessors);

// `shared_limit`: bytes of shared memory that a block may take, 0 for what the device gives (a test of the shape for small
// ones sets it). `overlap`: programmatic dependent launch. cudaErrorInvalidConfiguration: x does not fit.
cudaError_t launch(const Mxfp4MoeDecode& call, MoeLayout layout, int device, int64_t shared_limit, bool overlap,
                   cudaStream_t stream);

}  // namespace sparkforge
