#include "block_scaled.cuh"

__global__ void trap_probe(float* out, const uint32_t* a, const uint32_t* b, const uint32_t* scales) {
#if PROBE_HAS_BLOCK_SCALED
  const unsigned lane = threadIdx.x;
  const uint32_t left[4] = {a[lane], a[lane + 32], a[lane + 64], a[lane + 96]};
  const uint32_t right[2] = {b[lane], b[lane + 32]};
  float sum[4] = {};
  block_scaled_mma(sum, left, right, scales[lane]);
  for (int i = 0; i < 4; ++i) out[lane * 4 + i] = sum[i];
#else
  __trap();
#endif
}
