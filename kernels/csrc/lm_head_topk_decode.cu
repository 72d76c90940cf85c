// lm_head and what greedy or top-k sampling needs of it: the k largest logits and log-sum-exp, for 1 to 8 tokens.
//
// Bytes:       those of the layer (201088 x 2880: 308 MB); candidates of 132 to 264 blocks are less than 0.1 %.
// Shape:       the tile loop's adders keep, for each (token, row of a tile), the largest logits they have seen and a running
//              log-sum-exp. A block merges its sixteen rows of each token at the end, a second kernel merges the blocks.
// Order:       a candidate is one 64-bit key: the logit's bf16 in an order of unsigned numbers, NaN on top, then the row,
//              lowest first. Keys are unique, so the answer does not depend on who merges first; log-sum-exp is added in
//              a fixed order for a given device.
#include "launch_tiles.cuh"
#include "lm_head_topk_decode.h"

namespace sparkforge {
namespace decode {

struct TopParams {
  uint64_t* keys;    // [tokens][blocks][top]
  float2* sums;      // [tokens][blocks]: largest logit, sum of exp(logit - largest)
  float* values;
  int32_t* ids;
  float* log_sum;
  int top;
  int blocks;        // of the first kernel
};

constexpr int kColumns = 16;  // rows of a tile: threads to a token

__device__ __forceinline__ uint64_t key_of(uint16_t bf16, uint32_t row) {
  if (bf16 == 0x8000u) bf16 = 0;  // -0 and 0 are equal
  const uint32_t order = (bf16 & 0x8000u) != 0 && bf16 < 0xff81u ? 0xffffu - bf16 : bf16 | 0x8000u;
  return uint64_t{order} << 32 | (0xffffffffu - row);
}

__device__ __forceinline__ float value_of(uint64_t key) {
  const uint32_t order = static_cast<uint32_t>(key >> 32);
  return bf16_to_float((order & 0x8000u) != 0 ? order & 0x7fffu : 0xffffu - order);
}

__device__ __forceinline__ uint64_t largest_of_warp(uint64_t key) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const uint64_t other = __shfl_xor_sync(kAllLanes, key, distance);
    if (other > key) key = other;
  }
  return key;
}

__device__ __forceinline__ float2 add_sums(float2 a, float2 b) {
  const float largest = a.x > b.x ? a.x : b.x;
  const float left = a.x == largest ? a.y : a.y * expf(a.x - largest);
  const float right = b.x == largest ? b.y : b.y * expf(b.x - largest);
  return {largest, left + right};
}

// The running state of thread (token, row of a tile). It lies in shared memory: registers are the tile loop's.
struct Seen {
  uint64_t list[kMostTop];  // the largest keys, in any order; 0 is none
  uint64_t bar;             // a new key must be above it: the lowest of a full list, or of another full list of the token
  float2 sum;
  int lowest_at;
};

struct Top {
  const TopParams& t;
  Seen* seen;  // of all threads that have a (token, row)

  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x); }

  template <class L>
  __device__ __forceinline__ void begin(const Params&, int) const {}

  template <class L>
  __device__ __forceinline__ void take(const Params& p, int pass, int out, float total) {
    static_assert(L::kRows == kColumns);
    const int row = pass * L::kRows + out % L::kRows;
    if (row >= static_cast<int>(p.n)) return;
    Seen& mine = seen[out];
    if (p.bias != nullptr) total += bf16_to_float(__ldg(p.bias + row));
    const uint16_t rounded = float_to_bf16(total);
    if (p.y != nullptr) p.y[int64_t{out / L::kRows} * p.n + row] = rounded;
    const float value = bf16_to_float(rounded);
    float2 sum = mine.sum;
    if (value == sum.x) {
      sum.y += 1.0f;
    } else if (value > sum.x) {
      sum.y = sum.y * expf(sum.x - value) + 1.0f;
      sum.x = value;
    } else {
      sum.y += expf(value - sum.x);  // a NaN comes here, and stays
    }
    mine.sum = sum;
    const uint64_t key = key_of(rounded, static_cast<uint32_t>(row));
    if (key < mine.bar) return;
    mine.list[mine.lowest_at] = key;
    uint64_t lowest = ~uint64_t{0};
    int at = 0;
#pragma unroll 4
    for (int i = 0; i < kMostTop; ++i) {
      const uint64_t other = i < t.top ? mine.list[i] : ~uint64_t{0};
      if (other < lowest) lowest = other, at = i;
    }
    mine.lowest_at = at;
    if (lowest > mine.bar) mine.bar = lowest;
  }

  // Once a pass the sixteen threads of a token, lanes beside each other, tell each other what is no longer worth keeping.
  __device__ __forceinline__ void end(const Params&, int outputs) {
    const int out = thread();
    if (out / kWarp * kWarp >= outputs) return;
    uint64_t bar = out < outputs ? seen[out].bar : 0;
#pragma unroll
    for (int distance = kColumns / 2; distance > 0; distance /= 2) {
      const uint64_t other = __shfl_xor_sync(kAllLanes, bar, distance);
      if (other > bar) bar = other;
    }
    if (out < outputs) seen[out].bar = bar;
  }
};

// The `top` largest of `count` keys, by one warp: the largest below the last, again and again.
template <class Emit>
__device__ __forceinline__ void take_largest(const uint64_t* keys, int count, int top, Emit emit) {
  uint64_t last = ~uint64_t{0};
  for (int i = 0; i < top; ++i) {
    uint64_t best = 0;
    for (int at = threadIdx.x % kWarp; at < count; at += kWarp) {
      const uint64_t key = keys[at];
      if (key < last && key > best) best = key;
    }
    last = largest_of_warp(best);
    emit(i, last);
  }
}

}  // namespace decode

template <int kWarps, int kSteps, int kGroup, int kBlocks>
__global__ void __launch_bounds__(decode::Plan<kWarps, kSteps, kGroup>::kThreads, kBlocks)
    lm_head_topk_decode_kernel(const decode::Params p, const decode::TopParams t) {
  using namespace decode;
  __shared__ Seen seen[kMaxDecodeTokens * kColumns];
  const int mine = static_cast<int>(threadIdx.x);
  for (int i = mine; i < p.tokens * kColumns; i += blockDim.x) {
    for (int j = 0; j < kMostTop; ++j) seen[i].list[j] = 0;
    seen[i].bar = 0;
    seen[i].sum = {-INFINITY, 0.0f};
    seen[i].lowest_at = 0;
  }
  __syncthreads();
  Top top{t, seen};
  tile_loop<Packed<1>, Plan<kWarps, kSteps, kGroup>>(p, top);
  __syncthreads();
  const int warps = blockDim.x / kWarp;
  for (int token = mine / kWarp; token < p.tokens; token += warps) {
    // The largest of sixteen lists.
    uint64_t* out = t.keys + (int64_t{token} * t.blocks + blockIdx.x) * t.top;
    uint64_t last = ~uint64_t{0};
    const Seen* of = seen + token * kColumns;
    for (int i = 0; i < t.top; ++i) {
      uint64_t best = 0;
      for (int at = mine % kWarp; at < kColumns * kMostTop; at += kWarp) {
        const uint64_t key = of[at / kMostTop].list[at % kMostTop];
        if (key < last && key > best) best = key;
      }
      last = largest_of_warp(best);
      if (mine % kWarp == 0) out[i] = last;
    }
    if (mine % kWarp == 0) {
      float2 all = of[0].sum;
      for (int i = 1; i < kColumns; ++i) all = add_sums(all, of[i].sum);
      t.sums[int64_t{token} * t.blocks + blockIdx.x] = all;
    }
  }
}

// One block to a token; its warps shrink the blocks' candidates, the first takes the rest.
__global__ void __launch_bounds__(512) lm_head_topk_merge_kernel(const decode::TopParams t) {
  using namespace decode;
  __shared__ uint64_t kept[kMostWarps * kMostTop];
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int token = blockIdx.x;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int count = t.blocks * t.top;
  const uint64_t* keys = t.keys + int64_t{token} * count;
  const int share = (count + kMostWarps - 1) / kMostWarps;
  const int from = min(warp * share, count);
  take_largest(keys + from, min(share, count - from), t.top, [&](int i, uint64_t key) {
    if (lane == 0) kept[warp * t.top + i] = key;
  });
  __syncthreads();
  if (warp != 0) return;
  take_largest(kept, kMostWarps * t.top, t.top, [&](int i, uint64_t key) {
    if (lane != 0) return;
    t.values[token * t.top + i] = value_of(key);
    t.ids[token * t.top + i] = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
  });
  float2 all{-INFINITY, 0.0f};
  for (int block = lane; block < t.blocks; block += kWarp) all = add_sums(all, t.sums[int64_t{token} * t.blocks + block]);
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const float2 other{__shfl_down_sync(kAllLanes, all.x, distance), __shfl_down_sync(kAllLanes, all.y, distance)};
    all = add_sums(all, other);
  }
  if (lane == 0) t.log_sum[token] = all.x + logf(all.y);
}

namespace {

template <int kWarps, int kSteps, int kGroup, int kBlocks>
constexpr decode::Variant variant() {
  return decode::variant<decode::Packed<1>, decode::Plan<kWarps, kSteps, kGroup>>(
      reinterpret_cast<const void*>(lm_head_topk_decode_kernel<kWarps, kSteps, kGroup, kBlocks>), kBlocks);
}

// As mxfp4_linear_decode's, so that its logits are these to the bit.
const decode::Variant kPlans[] = {variant<15, 3, 3, 1>(), variant<9, 5, 5, 2>(), variant<16, 4, 4, 1>(), variant<0, 0, 1, 1>()};

}  // namespace

cudaError_t launch(const LmHeadTopk& call, cudaStream_t stream) {
  int multiprocessors = 0;
  if (const cudaError_t status = decode::multiprocessors_of_current(multiprocessors); status != cudaSuccess) return status;
  const decode::Variant& plan = decode::choose(kPlans, std::size(kPlans), call.dense.n, call.dense.k, multiprocessors);
  decode::Shape s = decode::shape(call.dense, plan, multiprocessors);
  s.blocks = std::min(s.blocks, static_cast<unsigned>(kMostTopBlocks));
  decode::TopParams top{};
  top.keys = static_cast<uint64_t*>(call.scratch);
  top.sums = reinterpret_cast<float2*>(top.keys + int64_t{call.dense.tokens} * s.blocks * call.top);
  top.values = call.values;
  top.ids = call.ids;
  top.log_sum = call.log_sum;
  top.top = call.top;
  top.blocks = static_cast<int>(s.blocks);
  if (const cudaError_t status = allow_shared(plan.kernel, s.shared); status != cudaSuccess) return status;
  void* arguments[] = {&s.params, &top};
  const cudaError_t status = launch(plan.kernel, arguments, {s.blocks, s.threads, s.shared, stream, call.dense.overlap});
  if (status != cudaSuccess) return status;
  void* merge[] = {&top};
  return launch(reinterpret_cast<const void*>(lm_head_topk_merge_kernel), merge,
                {static_cast<unsigned>(call.dense.tokens), decode::kMostWarps * decode::kWarp, 0, stream, true});
}

}  // namespace sparkforge
