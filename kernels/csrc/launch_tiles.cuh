// Choice and launch of a plan of the tile loop.
#pragma once

#include <algorithm>
#include <iterator>

#include "launch.h"
#include "mxfp4_linear_decode.cuh"

namespace sparkforge::decode {

template <int kLayout>
struct LayoutById;
template <>
struct LayoutById<int(Layout::kRows)> {
  using Is = Rows;
};
template <>
struct LayoutById<int(Layout::kMarlin)> {
  using Is = Marlin;
};
template <>
struct LayoutById<int(Layout::kPacked)> {
  using Is = Packed<1>;
};
template <int kLayout>
using LayoutOf = typename LayoutById<kLayout>::Is;

// A kernel and how it is cut.
struct Variant {
  const void* kernel;
  int warps;   // 0 with steps 0: any K
  int steps;
  int split;
  int blocks;  // to a multiprocessor
  int rows;    // of a pass
  int step_k;
  size_t (*shared)(int warps);
};

template <class L, class P>
constexpr Variant variant(const void* kernel, int blocks) {
  return {kernel, P::kWarps, P::kSteps, P::kSplit, blocks, L::kRows, L::kStepK, shared_bytes<L, P>};
}

constexpr int kFewestWarps = 4;  // so that each (token, row of a tile) has a thread
constexpr int kMostWarps = 16;
constexpr int kManyPasses = 8;  // to a multiprocessor: from here on bandwidth counts and not latency

// What a kernel needs besides its parameters, decided for a device.
struct Shape {
  Params params;
  unsigned blocks;
  unsigned threads;
  size_t shared;
  unsigned cluster;
};

inline bool fits(const Variant& v, int steps, int passes, int multiprocessors) {
  if (v.warps == 0) return true;
  const bool many = passes >= kManyPasses * multiprocessors;
  return v.warps * v.steps * v.split >= steps && (v.split == 1 || !many);
}

inline const Variant& choose(const Variant* list, size_t count, int64_t n, int64_t k, int multiprocessors) {
  const Variant* best = nullptr;
  for (size_t i = 0; i < count && (best == nullptr || list[i].warps != 0); ++i) {
    const Variant& v = list[i];
    const int steps = static_cast<int>((k + v.step_k - 1) / v.step_k);
    const int passes = static_cast<int>((n + v.rows - 1) / v.rows);
    if (!fits(v, steps, passes, multiprocessors)) continue;
    const bool many = passes >= kManyPasses * multiprocessors;
    if (best == nullptr || (many && v.blocks > best->blocks)) best = &v;
  }
  return *best;
}

inline Shape shape(const Mxfp4LinearDecode& call, const Variant& v, int multiprocessors) {
  Shape out{};
  Params& p = out.params;
  p.x = static_cast<const uint16_t*>(call.x);
  p.codes = static_cast<const uint8_t*>(call.weight);
  p.scales = call.scale;
  p.bias = call.bias;
  p.y = call.y;
  p.n = call.n;
  p.stored_n = call.stored_n;
  p.k = static_cast<int>(call.k);
  p.tokens = call.tokens;
  p.steps = static_cast<int>((call.k + v.step_k - 1) / v.step_k);
  p.passes = static_cast<int>((call.n + v.rows - 1) / v.rows);
  const int warps = v.warps != 0 ? v.warps : std::clamp(p.steps, kFewestWarps, kMostWarps);
  p.steps_per_warp = v.warps != 0 ? v.steps : (p.steps + warps - 1) / warps;
  int blocks = std::min(p.passes, multiprocessors * v.blocks);
  // Alone, blocks of equal length end together. With PDL the next kernel fills what shorter ones leave.
  if (!call.overlap) blocks = (p.passes + (p.passes + blocks - 1) / blocks - 1) / ((p.passes + blocks - 1) / blocks);
  out.blocks = static_cast<unsigned>(v.split > 1 ? p.passes * v.split : blocks);
  out.threads = static_cast<unsigned>(warps * kWarp);
  out.shared = v.shared(warps);
  out.cluster = static_cast<unsigned>(v.split);
  return out;
}

inline cudaError_t multiprocessors_of_current(int& count) {
  int device = 0;
  const cudaError_t status = cudaGetDevice(&device);
  return status != cudaSuccess ? status : cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
}

// Launches the best of `list`; `second` is another parameter of the kernel, by its address, or null.
template <int kCount>
cudaError_t launch(const Mxfp4LinearDecode& call, const Variant (&list)[kCount], void* second, cudaStream_t stream) {
  int multiprocessors = 0;
  if (const cudaError_t status = multiprocessors_of_current(multiprocessors); status != cudaSuccess) return status;
  const Variant& v = choose(list, kCount, call.n, call.k, multiprocessors);
  Shape s = shape(call, v, multiprocessors);
  if (const cudaError_t status = allow_shared(v.kernel, s.shared); status != cudaSuccess) return status;
  void* arguments[] = {&s.params, second};
  return sparkforge::launch(v.kernel, arguments, {s.blocks, s.threads, s.shared, stream, call.overlap, s.cluster});
}

}  // namespace sparkforge::decode
