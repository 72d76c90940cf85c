// The router of a mixture of experts for 1 to 8 tokens in one launch: RMSNorm, x W^T + b, the largest topk, softmax over them.
//
// Bytes:       2 experts hidden (gpt-oss-120b: 0.74 MB, 2.7 us at 273 GB/s), and x once a block from the second-level cache.
// Operations:  2 tokens experts hidden, on FMA units.
//
// Shape:       one block an expert; a thread keeps its part of the expert's row in registers, loaded before the wait for
//              the previous kernel. The blocks of the first tokens wait for the logits of all and choose; every block
//              computes the norm, one writes it.
// Sums:        fp32, in an order that depends on hidden alone; a token's result does not depend on its neighbours.
#include <sparkforge/handover.cuh>
#include <sparkforge/mxfp4.cuh>
#include <sparkforge/pipeline.cuh>

#include "launch.h"
#include "router_topk_decode.h"

namespace sparkforge {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kPieces = kMaxRouterHidden / 8 / kThreads;  // of 16 bytes, that a thread has at most
constexpr unsigned kAllLanes = 0xffffffffu;

constexpr int64_t kHead = 128;  // bytes of scratch before the logits: the launches, the blocks that are done

__device__ __forceinline__ void unpack(const uint4& from, float (&to)[8]) {
  const uint32_t word[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) mxfp4::unpack_bf16x2(word[i], to[2 * i], to[2 * i + 1]);
}

// Sums over the block, the same in every thread. `shared` holds kWarps * kCount floats.
template <int kCount>
__device__ __forceinline__ void sum_block(float (&value)[kCount], float* shared) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) value[i] += __shfl_xor_sync(kAllLanes, value[i], distance);
  if (threadIdx.x % kWarp == 0)
#pragma unroll
    for (int i = 0; i < kCount; ++i) shared[threadIdx.x / kWarp * kCount + i] = value[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    value[i] = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) value[i] += shared[w * kCount + i];
  }
}

// One warp: the topk largest of a token's logits, the lower expert first among equals, a NaN after all numbers.
__device__ void choose(const RouterTopkDecode& call, const uint64_t* logits, int token, uint32_t tag) {
  constexpr int kEach = kMaxRouterExperts / kWarp;
  const int lane = threadIdx.x % kWarp;
  float value[kEach];
  uint32_t key[kEach];  // orders as the values do; 0 for what is taken or not there
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int expert = lane + kWarp * i;
    key[i] = 0;
    value[i] = 0.0f;
    if (expert >= call.experts) continue;
    uint32_t bits;
    while (!get(logits + int64_t{token} * call.experts + expert, bits, tag)) {
    }
    value[i] = __uint_as_float(bits);
    key[i] = isnan(value[i]) ? 1u : (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
    if (bits == 0x80000000u) key[i] = 0x80000000u;  // -0 equals 0
  }
  float largest = 0.0f, sum = 0.0f, own = 0.0f;
  int own_expert = 0;
  for (int k = 0; k < call.topk; ++k) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) best = max(best, key[i]);
    best = __reduce_max_sync(kAllLanes, best);
    unsigned mine = kMaxRouterExperts;
#pragma unroll
    for (int i = kEach - 1; i >= 0; --i)
      if (key[i] == best) mine = lane + kWarp * i;
    const unsigned expert = __reduce_min_sync(kAllLanes, mine);
    float chosen = 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (expert == static_cast<unsigned>(lane + kWarp * i)) {
        chosen = value[i];
        key[i] = 0;
      }
    chosen = __shfl_sync(kAllLanes, chosen, expert % kWarp);
    if (k == 0) largest = chosen;
    const float power = chosen == largest ? 1.0f : expf(chosen - largest);  // inf - inf would be NaN
    sum += power;
    if (lane == k) {
      own = power;
      own_expert = static_cast<int>(expert);
    }
  }
  if (lane < call.topk) {
    call.ids[token * call.topk + lane] = own_expert;
    call.weights[token * call.topk + lane] = own / sum;
  }
}

}  // namespace

// Not in the unnamed namespace: its mangled name would carry a hash that differs from build to build.

template <int kTokens>
__global__ void __launch_bounds__(kThreads) router_topk_decode_kernel(const RouterTopkDecode call) {
  __shared__ float shared[2][kWarps * kTokens];
  const int pieces = call.hidden / 8;
  const int expert = blockIdx.x;
  uint4 row[kPieces] = {};
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int piece = threadIdx.x + kThreads * i;
    if (piece < pieces) row[i] = __ldg(reinterpret_cast<const uint4*>(call.weight + int64_t{expert} * call.hidden) + piece);
  }
  wait_for_previous_kernel();
  let_next_kernel_start();
  auto* const launches = static_cast<uint32_t*>(call.scratch);
  auto* const logits = reinterpret_cast<uint64_t*>(static_cast<char*>(call.scratch) + kHead);
  const uint32_t tag = *static_cast<volatile uint32_t*>(launches) + 1;

  const auto load = [&](int token, int piece) {  // not by __ldg, which the compiler may move above the wait
    return token < call.tokens && piece < pieces
               ? __ldcg(reinterpret_cast<const uint4*>(call.x + int64_t{token} * call.hidden) + piece)
               : make_uint4(0, 0, 0, 0);
  };
  float inverse[kTokens];
  if (call.gamma != nullptr) {
#pragma unroll
    for (int m = 0; m < kTokens; ++m) inverse[m] = 0.0f;
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      if (kThreads * i < pieces)
#pragma unroll
        for (int m = 0; m < kTokens; ++m) {
          float x[8];
          unpack(load(m, threadIdx.x + kThreads * i), x);
#pragma unroll
          for (int k = 0; k < 8; ++k) inverse[m] = fmaf(x[k], x[k], inverse[m]);
        }
    sum_block(inverse, shared[0]);
#pragma unroll
    for (int m = 0; m < kTokens; ++m) inverse[m] = rsqrtf(inverse[m] / static_cast<float>(call.hidden) + call.epsilon);
  }
  float logit[kTokens] = {};
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int piece = threadIdx.x + kThreads * i;
    if (piece >= pieces) continue;
    float w[8], gamma[8];
    unpack(row[i], w);
    if (call.gamma != nullptr) unpack(__ldg(reinterpret_cast<const uint4*>(call.gamma) + piece), gamma);
#pragma unroll
    for (int m = 0; m < kTokens; ++m) {
      float x[8];
      unpack(load(m, piece), x);
      if (call.gamma != nullptr) {
        uint32_t word[4];
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          const uint32_t bits = mxfp4::float_to_bf16(x[k] * inverse[m] * gamma[k]);
          x[k] = mxfp4::bf16_to_float(bits);
          word[k / 2] = k % 2 == 0 ? bits : word[k / 2] | bits << 16;
        }
        if (m < call.tokens && m % static_cast<int>(gridDim.x) == expert)
          reinterpret_cast<uint4*>(call.normed + int64_t{m} * call.hidden)[piece] = make_uint4(word[0], word[1], word[2], word[3]);
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) logit[m] = fmaf(x[k], w[k], logit[m]);
    }
  }
  sum_block(logit, shared[1]);
  const float bias = call.bias != nullptr ? mxfp4::bf16_to_float(__ldg(call.bias + expert)) : 0.0f;
#pragma unroll
  for (int m = 0; m < kTokens; ++m)
    if (threadIdx.x == m && m < call.tokens)
      put(logits + int64_t{m} * call.experts + expert, __float_as_uint(logit[m] + bias), tag);
  // Tokens are chosen for by the first blocks, or by the warps of fewer blocks than tokens.
  const int token = expert + static_cast<int>(threadIdx.x / kWarp) * static_cast<int>(gridDim.x);
  if (token < call.tokens) choose(call, logits, token, tag);
  __syncthreads();
  if (threadIdx.x == 0) end_launch(launches, launches + 1, tag, gridDim.x);
}

namespace {

template <int kTokens>
cudaError_t launch_for(const RouterTopkDecode& call, bool overlap, cudaStream_t stream) {
  void* arguments[] = {const_cast<RouterTopkDecode*>(&call)};
  return launch(reinterpret_cast<const void*>(router_topk_decode_kernel<kTokens>), arguments,
                Launch{static_cast<unsigned>(call.experts), kThreads, 0, stream, overlap});
}

}  // namespace

int64_t router_scratch_bytes(int tokens, int experts) { return kHead + int64_t{tokens} * experts * 8; }

cudaError_t launch(const RouterTopkDecode& call, bool overlap, cudaStream_t stream) {
  if (call.tokens <= 1) return launch_for<1>(call, overlap, stream);
  if (call.tokens <= 2) return launch_for<2>(call, overlap, stream);
  if (call.tokens <= 4) return launch_for<4>(call, overlap, stream);
  return launch_for<8>(call, overlap, stream);
}

}  // namespace sparkforge
