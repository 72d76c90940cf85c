// What the binding tells the kernel; plain CUDA runtime types, so that the binding needs no nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sparkforge {

constexpr int kMaxRouterTokens = 8;
constexpr int kMaxRouterExperts = 256;
constexpr int kMaxRouterTopk = 8;
constexpr int kMaxRouterHidden = 8192;

// Contiguous device memory on one device.
struct RouterTopkDecode {
  const uint16_t* x;       // bf16 [tokens, hidden], 16-byte aligned
  const uint16_t* gamma;   // bf16 [hidden], 16-byte aligned, or null for no norm
  const uint16_t* weight;  // bf16 [experts, hidden], 16-byte aligned
  const uint16_t* bias;    // bf16 [experts] or null
  uint16_t* normed;        // bf16 [tokens, hidden], 16-byte aligned; null exactly where gamma is
  int32_t* ids;            // [tokens, topk]
  float* weights;          // [tokens, topk]
  void* scratch;           // router_scratch_bytes(), zero before the first call, then the kernel's own
  int tokens, hidden, experts, topk;
  float epsilon;
};

int64_t router_scratch_bytes(int tokens, int experts);

// `overlap`: programmatic dependent launch.
cudaError_t launch(const RouterTopkDecode& call, bool overlap, cudaStream_t stream);

}  // namespace sparkforge
