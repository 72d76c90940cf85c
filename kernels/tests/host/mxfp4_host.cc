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

}  // extern "C"
