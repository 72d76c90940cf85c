// Weights as bf16 A fragments, on a CPU, behind C functions for ctypes.
#include <sparkforge/mxfp4_mma.cuh>

using namespace sparkforge::mxfp4;

extern "C" {

// words[count] -> out[count][8] bf16 bits: the four pairs, low half first; packed says which order the codes have.
void widen(const uint32_t* words, uint16_t* out, int64_t count, int packed) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t pair[4];
    if (packed != 0)
      widen_packed(words[i], pair);
    else
      widen_nibbles(words[i], pair);
    for (int j = 0; j < 8; ++j) out[8 * i + j] = static_cast<uint16_t>(pair[j / 2] >> (16 * (j % 2)));
  }
}

// codes[count][8] -> words[count].
void pack(const uint8_t* codes, uint32_t* words, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    uint8_t eight[8];
    for (int j = 0; j < 8; ++j) eight[j] = codes[8 * i + j];
    words[i] = pack_codes(eight);
  }
}

// out[256][16]: bf16 bits of every code under every scale; `wide` takes the way that holds for all scales.
void scaled_table(uint16_t* out, int wide) {
  for (uint32_t scale = 0; scale < 256; ++scale)
    for (uint32_t code = 0; code < 16; ++code) {
      uint32_t pair[4];
      widen_nibbles(code * 0x11111111u, pair);
      const uint32_t both = wide != 0 ? Factor<true>(scale)(pair[3]) : Factor<false>(scale)(pair[3]);
      out[16 * scale + code] = static_cast<uint16_t>(both >> 16 == (both & 0xffffu) ? both : 0xdeadu);
    }
}

}  // extern "C"
