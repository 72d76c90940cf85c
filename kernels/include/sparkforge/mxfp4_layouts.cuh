// Where the code and the scale of weight (row n, column k) lie in each layout that the decode kernels read.
//
// Rows        codes u8 [N, K/2], the even k in the low nibble; scales u8 [N, K/32].
// Marlin      what vLLM's gptq_marlin_repack(num_bits=4), marlin_permute_scales and mxfp4_marlin_process_scales make of
//             rows: codes int32 [K/16, 2 N], scales u8 [K/32, N], bias permuted by marlin_permute_bias; N is padded to 64.
//             A word of codes is a whole A fragment of a tile of 16 rows by 16 k.
// Packed      ours: units of 16 rows by 64 k, each 512 bytes of codes and 32 of scales, in the order [N/16][K/64]; N and K
//             are padded with zero codes under scale 0.
//
// Each function gives the place of one nibble or byte. The kernels use the same maps lane by lane; the host tests compare
// these with upstream's own repacking and with a simulated warp.
#pragma once

#include <sparkforge/mxfp4_mma.cuh>

namespace sparkforge::mxfp4 {

constexpr int kUnitRows = 16;
constexpr int kUnitK = 64;
constexpr int kUnitCodes = kUnitRows * kUnitK / 2;
constexpr int kUnitBytes = kUnitCodes + kUnitRows * kUnitK / kBlock;
constexpr int kMarlinRows = 64;

struct Nibble {
  int64_t byte;
  int shift;  // 0 or 4
};

SPARKFORGE_HD Nibble rows_code(int64_t n, int64_t k, int64_t all_k) { return {(n * all_k + k) / 2, static_cast<int>(k % 2) * 4}; }

SPARKFORGE_HD Nibble marlin_code(int64_t n, int64_t k, int64_t all_n) {
  const int row = static_cast<int>(n % kMarlinRows);
  const int slot = static_cast<int>(k % 16);
  const int lane = (row % 8) * 4 + (slot % 8) / 2;
  // Nibble of the lane's word: k = 2t, 2t+8 of row g, then of row g + 8; odd k four nibbles higher.
  const int nibble = slot / 8 + 2 * (row % 16 / 8) + 4 * (slot % 2);
  const int64_t word = ((k / 16) * (all_n / kMarlinRows) + n / kMarlinRows) * 128 + lane * 4 + row / 16;
  return {word * 4 + nibble / 2, nibble % 2 * 4};
}

SPARKFORGE_HD int64_t marlin_scale(int64_t n, int64_t block, int64_t all_n) {
  const int row = static_cast<int>(n % kMarlinRows);
  const int eighth = row / 8;                                                       // 0..7: row = 8 * eighth + g
  const int place = eighth / 4 * 4 + (eighth % 4 == 1 ? 2 : eighth % 4 == 2 ? 1 : eighth % 4);
  return block * all_n + n / kMarlinRows * kMarlinRows + row % 8 * 8 + place;
}

// Place of row n's bias after marlin_permute_bias.
SPARKFORGE_HD int64_t marlin_bias(int64_t n) {
  const int row = static_cast<int>(n % 32);
  return n / 32 * 32 + row % 8 / 2 * 8 + row / 8 * 2 + row % 2;
}

SPARKFORGE_HD int64_t packed_units(int64_t all_k) { return (all_k + kUnitK - 1) / kUnitK; }

SPARKFORGE_HD int64_t packed_tiles(int64_t all_n) { return (all_n + kUnitRows - 1) / kUnitRows; }

// Word of codes that holds (n, k), as a byte offset, and which of the eight codes of pack_codes it is: lane (g, t) holds
// k = 16t..16t+15 of rows g and g + 8, four k of both to a word.
SPARKFORGE_HD int64_t packed_word(int64_t n, int64_t k, int64_t all_k) {
  const int lane = static_cast<int>(n % 8) * 4 + static_cast<int>(k % kUnitK) / 16;
  return (n / kUnitRows * packed_units(all_k) + k / kUnitK) * kUnitBytes + lane * 16 + static_cast<int>(k % 16) / 4 * 4;
}

SPARKFORGE_HD int packed_place(int64_t n, int64_t k) {
  const int pair = static_cast<int>(k % 4) / 2 * 2 + static_cast<int>(n % kUnitRows) / 8;
  return 2 * pair + static_cast<int>(k % 2);
}

SPARKFORGE_HD int64_t packed_scale(int64_t n, int64_t block, int64_t all_k) {
  const int64_t unit = n / kUnitRows * packed_units(all_k) + block / 2;
  return unit * kUnitBytes + kUnitCodes + n % 8 * 4 + block % 2 * 2 + n % kUnitRows / 8;
}

}  // namespace sparkforge::mxfp4
