// The experts of a mixture for 1 to 8 tokens in one launch: gate and up, SwiGLU, down, weighted sum, residual.
//
// Bytes:       for each expert that a token chose, (2 inter hidden + hidden inter) * 4.25 / 8, read once whatever the number
//              of tokens (gpt-oss-120b: 13.2 MB; 52.9 MB a layer at M = 1, 194 us at 273 GB/s). Padding is not read.
// Operations:  2 * 8 columns * weights on the tensor cores.
//
// Shape:       one block a multiprocessor. The work of each of the two phases is a line of units (64 rows x 64 k, one
//              warp's step), cut into equal runs, one a block; a run crosses tiles, so nothing is rounded up to whole
//              tiles. A tile (64 rows) that several blocks share is summed by the block that has its beginning: the
//              others come across it at the start of their run and leave their sums in scratch.
//              Phase 1, line (expert, tile, k): gate and up -> act in scratch.
//              Phase 2, line (tile, expert, k): down, weighted sum over the experts of a tile.
//              No barrier stands between them: a warp waits for the words of act that it needs (handover.cuh).
//              All blocks must run at once, which one block a multiprocessor does unless something else keeps some busy.
// In flight:   every warp keeps kStages units of its own on their way to shared memory; the first units of phase 2 are on
//              their way before phase 1 is done. Sums of a tile go to four more warps, which finish it meanwhile.
// Sums:        fp32; blocks of 32 by the tensor core, units in a warp, warps, blocks: each in ascending order.
#include <cstring>

#include <sparkforge/barrier.cuh>

#include "launch.h"
#include "moe_routes.cuh"
#include "moe_weights.cuh"

namespace sparkforge {
namespace {

using moe::kRows;
using moe::kTokens;
using moe::kUnit;

constexpr int kFinishers = 4;  // warps that finish tiles while the others go on with the next one
constexpr int kEach = kSums / (kWarp * kFinishers);  // tokens of one row that one of their lanes finishes
constexpr int kAtOnce = 3;  // blocks whose sums are read at once

}  // namespace

// Not in the unnamed namespace: its mangled name would carry a hash that differs from build to build.

template <int kLayoutNumber, int kWarps, int kStages, int kBuffers>
__global__ void __launch_bounds__(kWarp*(kWarps + kFinishers), 1) mxfp4_moe_decode_kernel(
    const Mxfp4MoeDecode call, const moe::Powers powers) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
  if constexpr (kBuffers > 1) return;  // this shape takes more than the 99 KiB that a block may have here: it is never launched
#endif
  constexpr Layout kLayout = static_cast<Layout>(kLayoutNumber);
  constexpr int kStage = stage_bytes(kLayout);
  constexpr int kThreads = kWarp * (kWarps + kFinishers);
  extern __shared__ __align__(16) char shared[];
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared);  // of a buffer: the warps' sums of a tile are there
  uint64_t* const empty = full + kBuffers;                     // they were read
  char* const rings = shared + 32;
  char* const ring = rings + (threadIdx.x / kWarp) * (kStages * kStage);
  float* const sums = reinterpret_cast<float*>(rings + kWarps * kStages * kStage);
  uint4* const tokens = reinterpret_cast<uint4*>(sums + kBuffers * kWarps * kSums);
  const int units1 = (call.hidden + kUnit - 1) / kUnit;  // of a tile and an expert
  const int units2 = (call.inter + kUnit - 1) / kUnit;
  Routes& routes = *reinterpret_cast<Routes*>(tokens + int64_t{units1} * 8 * call.tokens);

  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int g = lane >> 2;
  const int t = lane & 3;
  const int block = blockIdx.x;
  const int blocks = gridDim.x;
  const Scratch scratch = place(call.scratch, blocks);
  const int act_blocks = call.inter / 32;

  wait_for_previous_kernel();
  let_next_kernel_start();
  // The tokens as B's fragments: [block of 32][token][t], eight bf16. Several are loaded before the first is used; not by
  // __ldg, which the compiler may move above the wait.
  const int pieces = units1 * 8 * call.tokens;
  const auto pack = [&](int begin, int step, uint32_t unscaled) {
    constexpr int kBatch = 6;
    uint32_t big = 0;
    for (int base = begin; base < pieces; base += kBatch * step) {
      uint32_t two[kBatch][4];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int i = base + j * step;
        const int m = (i >> 2) % call.tokens;
        const int b = (i >> 2) / call.tokens;
        const bool inside = i < pieces && b * 32 < call.hidden;
        const uint16_t* from = call.x + int64_t{m} * call.hidden + b * 32;
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          const int k = kLayout == Layout::kMarlin ? moe::element(kLayout, i & 3, 2 * pair) : 8 * (i & 3) + 2 * pair;
          two[j][pair] = inside ? __ldcg(reinterpret_cast<const uint32_t*>(from + k)) : 0;
        }
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int i = base + j * step;
        const int m = (i >> 2) % call.tokens;
        const bool raw = (unscaled >> m) & 1u;
        uint32_t half[8];  // in the order of the fragments
#pragma unroll
        for (int pair = 0; pair < 4; ++pair)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const uint32_t bits = h == 0 ? two[j][pair] & 0xffffu : two[j][pair] >> 16;
            if (moe::too_big(bits)) big |= 1u << m;
            const int at = kLayout == Layout::kMarlin ? 2 * pair + h : moe::position(kLayout, 2 * pair + h).place;
            half[at] = raw ? bits : moe::prescale(bits);
          }
        if (i < pieces)
          tokens[i] = make_uint4(half[0] | half[1] << 16, half[2] | half[3] << 16, half[4] | half[5] << 16, half[6] | half[7] << 16);
      }
    }
    return big;
  };
  uint32_t big = 0;
  if (warp == 0) {
    find_routes(routes, call, scratch.launches, lane);
    if (lane == 0)
      for (int i = 0; i < kBuffers; ++i) {
        init_barrier(full + i, kWarp * kWarps);
        init_barrier(empty + i, kWarp * kFinishers);
      }
  } else {
    big = pack(threadIdx.x - kWarp, kThreads - kWarp, 0);
  }
  if (__syncthreads_or(big != 0)) {  // some token is not prescaled
    if (big != 0) atomicOr(&routes.big, big);
    __syncthreads();
    big = routes.big;
    pack(threadIdx.x, kThreads, big);
    __syncthreads();
  }
  const uint32_t tag = routes.tag;
  const int places = routes.places;
  if (places == 0) {  // no expert at all
    for (int i = block * kThreads + threadIdx.x; i < call.tokens * call.hidden; i += blocks * kThreads)
      call.y[i] = call.residual != nullptr ? call.residual[i] : 0;
    return;
  }

  const int tiles1 = call.inter / moe::kPairs;
  const int tiles2 = (call.hidden + kRows - 1) / kRows;
  const int line1 = places * tiles1 * units1;
  const int line2 = tiles2 * places * units2;
  const int parts1 = min(blocks, line1);
  const int parts2 = min(blocks, line2);
  const moe::Shares share1(line1, parts1), share2(line2, parts2);
  const int from1 = block < parts1 ? share1.first(block) : 0;
  const int to1 = block < parts1 ? share1.first(block + 1) : 0;
  const int from2 = block < parts2 ? share2.first(block) : 0;
  const int to2 = block < parts2 ? share2.first(block + 1) : 0;

  // Where this warp's next fetch stands: phase, unit of the line, first unit of its tile and expert, and those two.
  int fetch_phase = 0;
  int fetch_unit = from1 + warp;  // of a warp that computes
  int fetch_begin = 0, fetch_stop = 0, fetch_tile = 0, fetch_place = 0;
  uint32_t slot = 0;
  Lane<kLayout, kWarps> source;
  const auto seek = [&](int units, int run_end) {
    fetch_stop = min(fetch_begin + units, run_end);
    source.seek(Weights<kLayout>(call, fetch_phase), routes.expert[fetch_place], fetch_tile, fetch_unit - fetch_begin, lane);
  };
  const auto start_phase = [&] {
    if (fetch_phase == 0 && fetch_unit >= to1) {
      fetch_phase = 1;
      fetch_unit = from2 + warp;
    }
    if (fetch_phase == 1 && fetch_unit >= to2) {
      fetch_phase = 2;
      return;
    }
    const int units = fetch_phase == 0 ? units1 : units2;
    const int across = fetch_phase == 0 ? tiles1 : places;
    const int tile = fetch_unit / units;
    const int outer = tile / across;
    const int inner = tile - outer * across;
    fetch_begin = tile * units;
    fetch_tile = fetch_phase == 0 ? inner : outer;
    fetch_place = fetch_phase == 0 ? outer : inner;
    seek(units, fetch_phase == 0 ? to1 : to2);
  };
  const auto fetch = [&] {
    if (fetch_phase < 2) {
      source.fetch(shared_address(ring) + slot, lane);
      fetch_unit += kWarps;
      if (fetch_unit < fetch_stop) {
        source.next();
      } else if (fetch_unit < (fetch_phase == 0 ? to1 : to2)) {
        const int units = fetch_phase == 0 ? units1 : units2;
        do {
          fetch_begin += units;
          int& inner = fetch_phase == 0 ? fetch_tile : fetch_place;
          int& outer = fetch_phase == 0 ? fetch_place : fetch_tile;
          if (++inner == (fetch_phase == 0 ? tiles1 : places)) inner = 0, ++outer;
        } while (fetch_unit >= fetch_begin + units);
        seek(units, fetch_phase == 0 ? to1 : to2);
      } else {
        start_phase();
      }
    }
    commit_copies();
    slot = slot + kStage == kStages * kStage ? 0 : slot + kStage;
  };
  if (warp < kWarps) {
    start_phase();
#pragma unroll 1
    for (int stage = 0; stage < kStages; ++stage) fetch();
  }

  const int all2 = places * units2;  // units of a tile in phase 2
  int segment = 0;                   // tiles, or parts of tiles, so far

  if (warp >= kWarps) {
    // ------------------------------------------------------------------------------------------------ finishing tiles
    const int self = threadIdx.x - kWarp * kWarps;
    const int row = self / (kTokens / kEach);
    const int column = self % (kTokens / kEach) * kEach;  // first of this lane's tokens
    constexpr int kUp = kTokens / kEach;                  // lanes from a row to the next: from gate to up
    constexpr int kOther = (kLayout == Layout::kMarlin ? 2 : 8) * kUp;  // to the output that shares a word of act
    const bool active = column < call.tokens;
    // The sums of this lane's outputs over warps and blocks. Returns whether they are complete: if not, they are another
    // block's to finish and were handed over.
    const auto tile_sums = [&](int phase, const moe::Shares& share, int from, int begin, int end, auto before, float(&value)[kEach]) {
      const bool mine = from <= begin;  // this block has the tile's beginning: it adds what the next blocks hand over
      const int last = mine ? share.part_of(end - 1) : block;
      float others[kEach] = {};
      if (mine && active) {
        before();
        for (int base = block + 1; base <= last; base += kAtOnce) {
          uint32_t word[kAtOnce][kEach];
          bool there;
          do {
            there = true;
#pragma unroll
            for (int o = 0; o < kAtOnce; ++o) {
              const uint64_t* from_other = scratch.sums[phase] + int64_t{base + o} * kSums + row * kTokens + column;
#pragma unroll
              for (int e = 0; e < kEach; e += 2)
                if (base + o <= last) there = get(from_other + e, word[o][e], word[o][e + 1], tag) & there;
            }
          } while (!there);
#pragma unroll
          for (int o = 0; o < kAtOnce; ++o)
#pragma unroll
            for (int e = 0; e < kEach; ++e)
              if (base + o <= last) others[e] += __uint_as_float(word[o][e]);
        }
      }
      __syncwarp();
      const int use = segment % kBuffers;
      wait<true>(full + use, (segment / kBuffers) & 1);
#pragma unroll
      for (int e = 0; e < kEach; ++e) value[e] = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float4 four = *reinterpret_cast<const float4*>(sums + (use * kWarps + w) * kSums + row * kTokens + column);
        value[0] += four.x;
        value[1] += four.y;
        value[2] += four.z;
        value[3] += four.w;
      }
      arrive(empty + use);
      ++segment;
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        if (mine)
          value[e] += others[e];
        else if (active)
          put(scratch.sums[phase] + int64_t{block} * kSums + row * kTokens + column + e, __float_as_uint(value[e]), tag);
      }
      return mine;
    };

    for (int tile = from1 / units1; tile * units1 < to1; ++tile) {
      const int at = tile / tiles1;
      const int n = tile - at * tiles1;
      float bias = 0.0f;
      const auto before = [&] {
        if (call.b13 == nullptr) return;
        const int64_t where = kLayout == Layout::kMarlin ? moe::marlin_bias(n * kRows + row)
                                                         : ((row & 1) ? 0 : call.inter_stored) + n * moe::kPairs + row / 2;
        bias = mxfp4::bf16_to_float(__ldg(call.b13 + routes.expert[at] * int64_t{2} * call.inter_stored + where));
      };
      float value[kEach];
      if (!tile_sums(0, share1, from1, tile * units1, (tile + 1) * units1, before, value)) continue;
      uint64_t routed;
      memcpy(&routed, routes.pair[at], sizeof routed);
      const int j = row / 2;
      const moe::Position position = moe::position(kLayout, j);
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        constexpr uint64_t kNone = 0x8000000080ull;  // this lane's token and the one that other lanes have in its place
        if (((routed >> (8 * e)) & kNone) == kNone) continue;
        const int m = column + e;
        const float own = value[e] * moe::column_factor((big >> m) & 1u) + bias;
        const float up = __shfl_xor_sync(kAllLanes, own, kUp);
        const uint32_t act = moe::prescale(mxfp4::float_to_bf16(moe::swiglu_oai(own, up, call.alpha, call.limit)));
        const uint32_t other = __shfl_xor_sync(kAllLanes, act, kOther);
        const int pair = active && m < call.tokens ? routes.pair[at][m] : -1;
        if ((row & 1) == 0 && (position.place & 1) == 0 && pair >= 0)
          put(scratch.act + ((int64_t{pair} * act_blocks + n) * 4 + position.t) * 4 + position.place / 2, act | other << 16, tag);
      }
    }
    for (int tile = from2 / all2; tile * all2 < to2; ++tile) {
      const int64_t n = int64_t{tile} * kRows + row;
      float known[kEach] = {};  // residual and weighted biases
      const auto before = [&] {
        if (n >= call.hidden) return;
        const int64_t where = kLayout == Layout::kMarlin ? moe::marlin_bias(n) : n;
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
          const int m = column + e;
          if (m >= call.tokens) continue;
          if (call.residual != nullptr) known[e] = mxfp4::bf16_to_float(call.residual[int64_t{m} * call.hidden + n]);
          if (call.b2 == nullptr) continue;
          for (int at = 0; at < call.topk; ++at) {
            const int place = routes.place[m * call.topk + at];
            if (place < 0) continue;
            const float bias = mxfp4::bf16_to_float(__ldg(call.b2 + int64_t{routes.expert[place]} * call.hidden_stored + where));
            known[e] = fmaf(routes.given[m * call.topk + at], bias, known[e]);
          }
        }
      };
      float value[kEach];
      if (!tile_sums(1, share2, from2, tile * all2, (tile + 1) * all2, before, value) || n >= call.hidden) continue;
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        const int m = column + e;
        if (m < call.tokens) call.y[int64_t{m} * call.hidden + n] = mxfp4::float_to_bf16(value[e] + known[e]);
      }
    }
    if (self == 0) end_launch(scratch.launches, scratch.left, tag, blocks);
    return;
  }

  // ------------------------------------------------------------------------------------------------------- computing
  const auto step = [&](float(&acc)[4][4], const uint4(&b)[2], int ku) {
    wait_copies<kStages - 1>();
    __syncwarp();
    Held<kLayout> held;
    held.load(ring + slot, ku, lane);
    const bool large = __any_sync(kAllLanes, held.large());
    __syncwarp();  // all lanes have read: the slot is free
    fetch();
    held.add_to(acc, b, large, powers);
  };
  // Hands this warp's sums of a tile over.
  const auto publish = [&](const float(&acc)[4][4]) {
    const int use = segment % kBuffers;
    if (segment >= kBuffers) wait<false>(empty + use, (segment / kBuffers - 1) & 1);
    float* const to = sums + (use * kWarps + warp) * kSums + g * kTokens + 2 * t;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *reinterpret_cast<float2*>(to + 16 * i * kTokens) = make_float2(acc[i][0], acc[i][1]);
      *reinterpret_cast<float2*>(to + (16 * i + 8) * kTokens) = make_float2(acc[i][2], acc[i][3]);
    }
    arrive(full + use);
    ++segment;
  };

  int unit = from1 + warp;
  for (int tile = from1 / units1; tile * units1 < to1; ++tile) {
    const int begin = tile * units1;
    const int stop = min(to1, begin + units1);
    float acc[4][4] = {};
#pragma unroll 1
    for (; unit < stop; unit += kWarps) {
      uint4 b[2] = {};
      if (g < call.tokens) {
        const uint4* at = tokens + ((unit - begin) * 2 * call.tokens + g) * 4 + t;
        b[0] = at[0];
        b[1] = at[4 * call.tokens];
      }
      step(acc, b, unit - begin);
    }
    publish(acc);
  }

  unit = from2 + warp;
  for (int tile = from2 / all2; tile * all2 < to2; ++tile) {
    const int begin = tile * all2;
    const int stop = min(to2, begin + all2);
    const int use = segment % kBuffers;
    if (segment >= kBuffers) wait<false>(empty + use, (segment / kBuffers - 1) & 1);
    float2* const total = reinterpret_cast<float2*>(sums + (use * kWarps + warp) * kSums + g * kTokens + 2 * t);
#pragma unroll
    for (int i = 0; i < 8; ++i) total[8 * i * kTokens / 2] = make_float2(0.0f, 0.0f);
    // The expert that `unit` belongs to, where its units begin and, for lanes with a token of it, where act begins.
    int at = max(unit - begin, 0) / units2;
    int origin = begin + at * units2;
    int pair = -1;
    const auto find_pair = [&] { pair = g < call.tokens && at < places ? routes.pair[at][g] : -1; };
    find_pair();
    uint32_t data[8], tags[8];  // of act for `unit`, asked for while the unit before was computed
    const auto ask = [&] {
      const uint64_t* from = scratch.act + ((int64_t{pair} * act_blocks + 2 * (unit - origin)) * 4 + t) * 4;
      const bool second = 2 * (unit - origin) + 1 < act_blocks;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        data[i] = 0;
        tags[i] = tag;
      }
      if (pair >= 0 && unit < stop) {
        get(from, data[0], data[1], tags[0], tags[1]);
        get(from + 2, data[2], data[3], tags[2], tags[3]);
        if (second) {
          get(from + 16, data[4], data[5], tags[4], tags[5]);
          get(from + 18, data[6], data[7], tags[6], tags[7]);
        }
      }
    };
    ask();
    float acc[4][4] = {};
#pragma unroll 1
    while (unit < stop) {
      while (true) {
        bool there = true;
#pragma unroll
        for (int i = 0; i < 8; ++i) there = there & (tags[i] == tag);
        if (__all_sync(kAllLanes, there)) break;
        ask();
      }
      const uint4 b[2] = {make_uint4(data[0], data[1], data[2], data[3]), make_uint4(data[4], data[5], data[6], data[7])};
      const int ku = unit - origin;
      const int here = at;
      unit += kWarps;
      if (unit >= origin + units2) {
        do {
          ++at;
          origin += units2;
        } while (unit >= origin + units2);
        find_pair();
      }
      ask();
      step(acc, b, ku);
      if (at == here && unit < stop) continue;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int m = 2 * t + c;
        const int own = m < call.tokens ? routes.pair[here][m] : -1;
        if (own < 0) continue;
        const float weight = routes.weight[own];
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& to = c == 0 ? total[(16 * i + 8 * half) * kTokens / 2].x : total[(16 * i + 8 * half) * kTokens / 2].y;
            to = fmaf(weight, acc[i][2 * half + c], to);
          }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int c = 0; c < 4; ++c) acc[i][c] = 0.0f;
    }
    arrive(full + use);
    ++segment;
  }
}

namespace {

struct Device {
  int multiprocessors = 0;
  int shared = 0;  // bytes that one block may have
};

cudaError_t device_facts(int device, Device& out) {
  cudaError_t status = cudaDeviceGetAttribute(&out.multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (status == cudaSuccess)
    status = cudaDeviceGetAttribute(&out.shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return status;
}

int64_t shared_bytes(const Mxfp4MoeDecode& call, Layout layout, int warps, int stages, int buffers) {
  const int64_t units = (call.hidden + kUnit - 1) / kUnit;
  return 32 + int64_t{warps} * stages * stage_bytes(layout) + int64_t{buffers} * warps * kSums * 4 + units * 8 * call.tokens * 16 +
         int64_t{sizeof(Routes)};
}

// Launches this shape if it fits into `limit` bytes of shared memory; `fits` says so.
template <int kLayoutNumber, int kWarps, int kStages, int kBuffers>
cudaError_t try_shape(const Mxfp4MoeDecode& call, const Device& device, int64_t limit, bool overlap, cudaStream_t stream,
                      bool& fits) {
  const int64_t bytes = shared_bytes(call, static_cast<Layout>(kLayoutNumber), kWarps, kStages, kBuffers);
  fits = bytes <= limit;
  if (!fits) return cudaSuccess;
  const auto* kernel = reinterpret_cast<const void*>(mxfp4_moe_decode_kernel<kLayoutNumber, kWarps, kStages, kBuffers>);
  const cudaError_t status = allow_shared(kernel, static_cast<size_t>(bytes));
  if (status != cudaSuccess) return status;
  moe::Powers powers;
  void* arguments[] = {const_cast<Mxfp4MoeDecode*>(&call), &powers};
  return launch(kernel, arguments,
                Launch{static_cast<unsigned>(device.multiprocessors), kWarp * (kWarps + kFinishers), static_cast<size_t>(bytes), stream, overlap});
}

template <int kLayoutNumber>
cudaError_t launch_layout(const Mxfp4MoeDecode& call, const Device& device, int64_t limit, bool overlap, cudaStream_t stream) {
  bool fits = false;
  cudaError_t status = try_shape<kLayoutNumber, 12, 2, 2>(call, device, limit, overlap, stream, fits);
  if (!fits) status = try_shape<kLayoutNumber, 8, 2, 1>(call, device, limit, overlap, stream, fits);
  return fits ? status : cudaErrorInvalidConfiguration;
}

}  // namespace

int64_t scratch_bytes(int tokens, int topk, int inter, int multiprocessors) {
  const Scratch at = place(nullptr, multiprocessors);
  return reinterpret_cast<int64_t>(at.act) + int64_t{tokens} * topk * inter * 4;
}

cudaError_t launch(const Mxfp4MoeDecode& call, MoeLayout layout, int device, int64_t shared_limit, bool overlap,
                   cudaStream_t stream) {
  Device facts;
  const cudaError_t status = device_facts(device, facts);
  if (status != cudaSuccess) return status;
  const int64_t limit = shared_limit > 0 && shared_limit < facts.shared ? shared_limit : facts.shared;
  return layout == MoeLayout::kMarlin ? launch_layout<0>(call, facts, limit, overlap, stream)
                                      : launch_layout<1>(call, facts, limit, overlap, stream);
}

}  // namespace sparkforge
