// Reads Marlin tiles as mxfp4_moe_decode does and computes nothing: what this layout's addresses alone cost.
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kWarps = 12;
constexpr int kStages = 4;
constexpr int kUnit = 2048;  // bytes: four lines of k16, 512 bytes of each

__global__ void __launch_bounds__(32 * kWarps, 1)
    read_tiles(const uint8_t* codes, int64_t expert, int experts, int64_t line, int tiles, int units, unsigned* sink) {
  extern __shared__ __align__(16) char shared[];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  char* ring = shared + warp * kStages * kUnit;
  const int64_t all = int64_t{experts} * tiles * units;
  const int64_t end = all * (blockIdx.x + 1) / gridDim.x;
  int64_t next = all * blockIdx.x / gridDim.x + warp;
  int64_t unit = next;
  const auto fetch = [&](int stage) {
    if (next < end) {
      const int64_t tile = next / units;
      const uint8_t* from =
          codes + tile / tiles * expert + next % units * 4 * line + tile % tiles * 512 + lane * 16;
      for (int q = 0; q < 4; ++q) {
        const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(ring + stage * kUnit + q * 512 + lane * 16));
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from + q * line) : "memory");
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    next += kWarps;
  };
  for (int stage = 0; stage < kStages; ++stage) fetch(stage);
  unsigned sum = 0;
  for (int stage = 0; unit < end; unit += kWarps, stage = (stage + 1) % kStages) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 1) : "memory");
    for (int q = 0; q < 4; ++q) {
      const uint4 four = *reinterpret_cast<const uint4*>(ring + stage * kUnit + q * 512 + lane * 16);
      sum ^= four.x ^ four.y ^ four.z ^ four.w;
    }
    fetch(stage);
  }
  if (sum == 0x9e3779b9u) *sink = sum;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int tiles(const void* codes, int64_t expert, int experts, int64_t line,
                                                            int count, int units, void* sink, int blocks, void* stream) {
  constexpr int kShared = kWarps * kStages * kUnit;
  cudaFuncSetAttribute(read_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  read_tiles<<<blocks, 32 * kWarps, kShared, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint8_t*>(codes), expert, experts, line, count, units, static_cast<unsigned*>(sink));
  return cudaGetLastError();
}
