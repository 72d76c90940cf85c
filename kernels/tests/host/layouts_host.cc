// Where each layout holds a weight, and what a warp makes of a unit, on a CPU, behind C functions for ctypes.
#include <sparkforge/mxfp4_layouts.cuh>

using namespace sparkforge::mxfp4;

extern "C" {

// codes[n][k] -> bytes of Marlin's layout, which the caller has cleared.
void marlin_codes(const uint8_t* codes, uint8_t* out, int64_t n, int64_t k) {
  for (int64_t row = 0; row < n; ++row)
    for (int64_t at = 0; at < k; ++at) {
      const Nibble place = marlin_code(row, at, n);
      out[place.byte] = static_cast<uint8_t>(out[place.byte] | codes[row * k + at] << place.shift);
    }
}

void marlin_scales(const uint8_t* scales, uint8_t* out, int64_t n, int64_t blocks) {
  for (int64_t row = 0; row < n; ++row)
    for (int64_t block = 0; block < blocks; ++block) out[marlin_scale(row, block, n)] = scales[row * blocks + block];
}

void marlin_biases(const uint16_t* bias, uint16_t* out, int64_t n) {
  for (int64_t row = 0; row < n; ++row) out[marlin_bias(row)] = bias[row];
}

// codes[n][k], scales[n][k/32] -> units of our packing, which the caller has cleared; n and k are whole units.
void pack_units(const uint8_t* codes, const uint8_t* scales, uint8_t* out, int64_t n, int64_t k) {
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t at = 0; at < k; ++at) {
      uint8_t eight[8] = {};
      eight[packed_place(row, at)] = codes[row * k + at];
      uint32_t word;
      std::memcpy(&word, out + packed_word(row, at, k), sizeof word);
      word |= pack_codes(eight);
      std::memcpy(out + packed_word(row, at, k), &word, sizeof word);
    }
    for (int64_t block = 0; block < k / kBlock; ++block)
      out[packed_scale(row, block, k)] = scales[row * (k / kBlock) + block];
  }
}

// What the A fragments of the kernels hold, by row and k, as bf16 bits times 2^-126: a warp's lanes and words of one unit
// of ours, [16][64], or of one tile of Marlin's, [64][16].
void warp_of_unit(const uint8_t* unit, uint16_t* out) {
  for (int lane = 0; lane < 32; ++lane)
    for (int w = 0; w < 4; ++w) {
      uint32_t word;
      std::memcpy(&word, unit + lane * 16 + 4 * w, sizeof word);
      uint32_t a[4];  // rows g, g + 8, g, g + 8
      widen_packed(word, a);
      for (int i = 0; i < 4; ++i)
        for (int half = 0; half < 2; ++half) {
          const int row = lane / 4 + 8 * (i % 2);
          const int k = lane % 4 * 16 + 4 * w + i / 2 * 2 + half;
          out[row * 64 + k] = static_cast<uint16_t>(a[i] >> (16 * half));
        }
    }
}

void warp_of_marlin(const uint8_t* tile, uint16_t* out) {
  for (int lane = 0; lane < 32; ++lane)
    for (int w = 0; w < 4; ++w) {
      uint32_t word;
      std::memcpy(&word, tile + lane * 16 + 4 * w, sizeof word);
      uint32_t pair[4];  // handed to the instruction as a0, a2, a1, a3
      widen_nibbles(word, pair);
      for (int i = 0; i < 4; ++i)
        for (int half = 0; half < 2; ++half) {
          const int row = 16 * w + lane / 4 + 8 * (i / 2);
          const int k = lane % 4 * 2 + 8 * (i % 2) + half;
          out[row * 16 + k] = static_cast<uint16_t>(pair[i] >> (16 * half));
        }
    }
}

}  // extern "C"
