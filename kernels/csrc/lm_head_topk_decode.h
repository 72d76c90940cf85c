// What the binding tells lm_head_topk_decode.
#pragma once

#include "mxfp4_linear_decode.h"

namespace sparkforge {

constexpr int kMostTop = 16;
constexpr int kMostTopBlocks = 512;  // blocks whose candidates the scratch has room for

struct LmHeadTopk {
  Mxfp4LinearDecode dense;  // kPacked; y may be null, or takes the logits, bf16 [tokens, n]
  int top;                  // 1..kMostTop
  float* values;            // [tokens, top], descending; the logits rounded to bf16
  int32_t* ids;             // [tokens, top]; of equal logits the lowest row first
  float* log_sum;           // [tokens]: log of the sum of exp of the logits
  void* scratch;            // topk_scratch(tokens, top) bytes, 16-byte aligned
};

constexpr int64_t topk_scratch(int64_t tokens, int64_t top) { return int64_t{kMostTopBlocks} * tokens * (top + 1) * 8; }

// Enqueues two kernels on the stream; allocates nothing, synchronises nothing.
cudaError_t launch(const LmHeadTopk& call, cudaStream_t stream);

}  // namespace sparkforge
