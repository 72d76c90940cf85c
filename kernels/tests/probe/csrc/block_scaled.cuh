// One m16n8k32 block-scaled MMA, E4M3 by E2M1 with E8M0 scales (PTX ISA, mma.sync with .block_scale).
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH_SPECIFIC__)
#define PROBE_TARGET __CUDA_ARCH_SPECIFIC__
#elif defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
#define PROBE_TARGET __CUDA_ARCH_FAMILY_SPECIFIC__
#else
#define PROBE_TARGET 0
#endif

// The target has the instruction only with its suffix: 12.1f and 12.1a, not 12.1.
#define PROBE_HAS_BLOCK_SCALED (PROBE_TARGET / 100 == 12)

#if PROBE_HAS_BLOCK_SCALED
__device__ inline void block_scaled_mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], uint32_t scales) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e2m1.f32.ue8m0 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, {%10}, {0, 0}, {%10}, {0, 0};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scales));
}
#endif
