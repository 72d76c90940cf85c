// What the parts of the twin share: the kernels' table and FlashInfer's set-up of a grouped GEMM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "check.h"
#include "moe_gemm_kernels.h"

using Input = tensorrt_llm::kernels::cutlass_kernels::TmaWarpSpecializedGroupedGemmInput;

// A compiled kernel: its tile is 128 x tile_n x 128, with the weights on M and the tokens on N where `swap_ab`.
struct Variant {
  int tile_n;
  bool swap_ab;
  bool finalize;
  void (*launch)(Input const&, int experts, int multiprocessors, size_t* workspace_size);
};

inline std::vector<Variant>& variants() {
  static std::vector<Variant> all;
  return all;
}

// What one GEMM is made from, on the device.
struct Problem {
  int experts;
  int64_t n, k;
  int64_t const* first_row;          // [experts + 1]
  uint8_t const* activations;        // E4M3 [rows, k]
  uint8_t const* weights;            // E2M1, one to a byte, [experts, n, k]
  uint8_t const* activation_scales;  // UE8M0, 128x4 blocks, each expert's at activation_scales_at()
  uint8_t const* weight_scales;      // UE8M0, 128x4 blocks, [experts, ceil(n / 128) * 128, k / 32]
  float const* alpha;                // [experts] or null
  void const* bias;                  // BF16 [experts, n] or null
  float const* router_scales;        // [rows]
  int const* source;                 // [rows]: i * tokens + token for the i-th expert of a token
  void* output;                      // BF16 [rows, n]
};

// Fill the arrays of `input` by FlashInfer's own kernel; they hold bytes of `fill` before, as experts without rows keep
// what was there.
void set_up(Input& input, Problem const& problem, Arena& arena, uint8_t fill);

// The offset of an expert's activation scales, as FlashInfer counts it.
int64_t activation_scales_at(int64_t expert, int64_t first_row, int64_t k);
