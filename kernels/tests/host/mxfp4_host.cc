// The kernels' numerics on a CPU, behind C functions for ctypes. Needs a C++17 compiler and nothing of CUDA.
#include <sparkforge/mxfp4.cuh>

using namespace sparkforge::mxfp4;

extern "C" {

// out[256][16]: every code under every scale.
void decode_table(float* out) {
  for (uint32_t scale = 0; scale < 256; ++scale)
    for (uint32_t code = 0; code < 16; ++code) out[scale * 16 + code] = decode(code, scale);
}

void e8m0_table(float* out) {
  for (uint32_t scale = 0; scale < 256; ++scale) out[scale] = e8m0(scale);
}

// out[i] = value of the code at nibble i of the word: the shifts that the kernel uses.
void unpack_word(uint32_t word, float* out) {
  for (int k = 0; k < kCodesPerWord; ++k) out[k] = e2m1(word, 4 * k);
}

void round_bf16(const float* in, uint16_t* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = float_to_bf16(in[i]);
}

void widen_bf16(const uint16_t* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = bf16_to_float(in[i]);
}

// mxfp4_linear_decode, addition by addition as the GPU does it: equal bits are expected, not close ones.
void linear_decode(const uint16_t* x, const uint8_t* weight, const uint8_t* scale, const uint16_t* bias, uint16_t* y,
                   int64_t m, int64_t n, int64_t k) {
  const int64_t blocks = k / kBlock;
  for (int64_t row = 0; row < n; ++row)
    for (int64_t token = 0; token < m; ++token) {
      float lanes[32] = {};
      for (int64_t block = 0; block < blocks; ++block) {
        float even = 0.0f;
        float odd = 0.0f;
        for (int word = 0; word < kWordsPerBlock; ++word) {
          uint32_t codes;
          std::memcpy(&codes, weight + (row * blocks + block) * kBlockBytes + 4 * word, sizeof codes);
          float w[kCodesPerWord];
          float value[kCodesPerWord];
          for (int i = 0; i < kCodesPerWord; ++i) {
            w[i] = e2m1(codes, 4 * i);
            value[i] = bf16_to_float(x[token * k + block * kBlock + word * kCodesPerWord + i]);
          }
          dot8(w, value, even, odd);
        }
        float& lane = lanes[block % 32];
        lane = add_block(lane, scale[row * blocks + block], even + odd);
      }
      for (int distance = 16; distance > 0; distance /= 2) {
        float next[32];
        for (int i = 0; i < 32; ++i) next[i] = lanes[i] + lanes[i ^ distance];
        std::memcpy(lanes, next, sizeof lanes);
      }
      float sum = lanes[0];
      if (bias != nullptr) sum += bf16_to_float(bias[row]);
      y[token * n + row] = float_to_bf16(sum);
    }
}

}  // extern "C"
