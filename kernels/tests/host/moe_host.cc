// Numerics and layouts of the expert kernel on a CPU, behind C functions for ctypes.
#include <sparkforge/moe.cuh>

#include <initializer_list>

using namespace sparkforge;
using namespace sparkforge::moe;

namespace {

// The A fragment of a word as the kernel hands it to the MMA: value of (row within 16, slot of k within 16).
// Slots of lane 4 g + t: a0 and a2 are row g, a1 and a3 row g + 8; a0, a1 slots 2t, 2t + 1; a2, a3 slots 2t + 8, 2t + 9.
void place_fragment(const uint32_t (&a)[4], int lane, float (&rows)[16][16]) {
  const int g = lane / 4;
  const int t = lane % 4;
  for (int i = 0; i < 4; ++i)
    for (int half = 0; half < 2; ++half) {
      const uint32_t bits = half == 0 ? a[i] & 0xffffu : a[i] >> 16;
      rows[g + 8 * (i & 1)][2 * t + 8 * (i >> 1) + half] = mxfp4::bf16_to_float(bits) * 0x1p126f;
    }
}

// Which k of a block the slot of the MMA `step` (0 or 1) stands for: what B holds there.
int k_of_slot(Layout layout, int step, int slot) {
  const int t = slot % 8 / 2;
  return element(layout, t, 4 * step + 2 * (slot / 8) + slot % 2);
}

}  // namespace

extern "C" {

// Words to pairs; out[count][8] bf16 bits, low half first.
void widen_words(const uint32_t* words, uint16_t* out, uint16_t* plain, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t pair[4], other[4];
    widen(words[i], pair, Powers());
    mxfp4::widen_nibbles(words[i], other);
    for (int j = 0; j < 8; ++j) {
      out[8 * i + j] = static_cast<uint16_t>(pair[j / 2] >> (16 * (j % 2)));
      plain[8 * i + j] = static_cast<uint16_t>(other[j / 2] >> (16 * (j % 2)));
    }
  }
}

void factors(float* fast, float* large) {
  for (uint32_t s = 0; s < 256; ++s) {
    fast[s] = block_factor(s & 127u, Powers());
    large[s] = large_factor(s);
  }
}

int is_large(uint32_t four) { return any_large(four); }

void prescale_all(uint16_t* out, uint8_t* big) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    out[bits] = static_cast<uint16_t>(prescale(bits));
    big[bits] = too_big(bits);
  }
}

void swiglu(const float* gate, const float* up, float* out, int64_t count, float alpha, float limit) {
  for (int64_t i = 0; i < count; ++i) out[i] = swiglu_oai(gate[i], up[i], alpha, limit);
}

void positions(int layout, int32_t* t, int32_t* place, int32_t* back) {
  for (int k = 0; k < 32; ++k) {
    const Position p = position(static_cast<Layout>(layout), k);
    t[k] = p.t;
    place[k] = p.place;
    back[k] = element(static_cast<Layout>(layout), p.t, p.place);
  }
}

void bias_rows(int64_t* out, int64_t count) {
  for (int64_t row = 0; row < count; ++row) out[row] = marlin_bias(row);
}

void swizzle(int64_t* out, int64_t rows, int64_t blocks) {
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t b = 0; b < blocks; ++b) out[m * blocks + b] = swizzled_scale(m, b, (blocks + 3) / 4);
}

void shares(int units, int parts, int32_t* first, int32_t* part) {
  const Shares share(units, parts);
  for (int p = 0; p <= parts; ++p) first[p] = share.first(p);
  for (int u = 0; u < units; ++u) part[u] = share.part_of(u);
}

// Unit `ku` of tile `tile` from Marlin's bytes, lane by lane: values[64][64] by row and k, without their scales, and the
// scale code of each.
void marlin_unit(const uint8_t* codes, const uint8_t* scales, int rows, int tile, int ku, float* values, uint8_t* scale) {
  for (int lane = 0; lane < 32; ++lane)
    for (int q = 0; q < 4; ++q)
      for (int i = 0; i < 4; ++i) {
        uint32_t word;
        std::memcpy(&word, codes + (4 * ku + q) * int64_t{rows} * 8 + tile * 512 + lane * 16 + 4 * i, sizeof word);
        uint32_t pair[4];
        widen(word, pair, Powers());
        const uint32_t a[4] = {pair[0], pair[2], pair[1], pair[3]};
        float fragment[16][16] = {};
        place_fragment(a, lane, fragment);
        const int g = lane / 4;
        for (int row : {g, g + 8})
          for (int slot : {2 * (lane % 4), 2 * (lane % 4) + 1, 2 * (lane % 4) + 8, 2 * (lane % 4) + 9}) {
            const int k = 32 * (q / 2) + k_of_slot(Layout::kMarlin, q % 2, slot);
            const int at = 16 * i + row;
            values[at * 64 + k] = fragment[row][slot];
            const uint8_t* eight = scales + (2 * ku + q / 2) * int64_t{rows} + tile * 64 + g * 8;
            const int half = row >= 8;
            scale[at * 64 + k] = eight[4 * (i >> 1) + (i & 1) + 2 * half];
          }
      }
}

// The same from rows of codes and swizzled scales; row_of[64] says which stored row a row of the tile is.
void cutlass_unit(const uint8_t* codes, const uint8_t* scales, const int64_t* row_of, int k_stored, int ku, float* values,
                  uint8_t* scale) {
  for (int lane = 0; lane < 32; ++lane)
    for (int b = 0; b < 2; ++b)
      for (int i = 0; i < 4; ++i) {
        uint32_t low[4], high[4];
        const int g = lane / 4;
        for (int half = 0; half < 2; ++half) {
          uint32_t word;
          std::memcpy(&word, codes + row_of[16 * i + g + 8 * half] * (k_stored / 2) + ku * 32 + b * 16 + (lane % 4) * 4, 4);
          if (half == 0)
            widen(word, low, Powers());
          else
            widen(word, high, Powers());
        }
        for (int step = 0; step < 2; ++step) {
          const uint32_t a[4] = {low[2 * step], high[2 * step], low[2 * step + 1], high[2 * step + 1]};
          float fragment[16][16] = {};
          place_fragment(a, lane, fragment);
          for (int row : {g, g + 8})
            for (int slot : {2 * (lane % 4), 2 * (lane % 4) + 1, 2 * (lane % 4) + 8, 2 * (lane % 4) + 9}) {
              const int k = 32 * b + k_of_slot(Layout::kCutlass, step, slot);
              const int at = 16 * i + row;
              values[at * 64 + k] = fragment[row][slot];
              scale[at * 64 + k] = scales[swizzled_scale(row_of[at], 2 * ku + b, k_stored / 128)];
            }
        }
      }
}

}  // extern "C"
