// How a warp of mxfp4_moe_decode finds, fetches and multiplies a unit of weights in either layout; device code.
#pragma once

#include <sparkforge/moe.cuh>
#include <sparkforge/pipeline.cuh>

#include "mxfp4_moe_decode.h"

namespace sparkforge {
namespace {

using moe::Layout;

__host__ __device__ constexpr int scale_bytes(Layout layout) { return layout == Layout::kMarlin ? 128 : 256; }
__host__ __device__ constexpr int stage_bytes(Layout layout) { return moe::kUnitBytes + scale_bytes(layout); }

// The line of 128 bytes is fetched into the second-level cache, of which this unit takes 32 and its neighbours the rest.
__device__ __forceinline__ void copy_async_16_of_128(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// d = A B, or d += A B.
__device__ __forceinline__ void multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.0f));
}

__device__ __forceinline__ uint32_t word_of(const uint4& four, int index) {
  return index == 0 ? four.x : index == 1 ? four.y : index == 2 ? four.z : four.w;
}

__device__ __forceinline__ uint32_t byte_of(uint32_t word, int index) { return __byte_perm(word, 0, 0x4440 + index); }

// The weights of one phase as they are stored, and how a lane finds its part of a unit.
template <Layout kLayout>
struct Weights {
  const uint8_t* codes;
  const uint8_t* scales;
  int64_t expert_codes, expert_scales;
  int64_t line;    // Marlin: bytes of 16 k for all rows; CUTLASS: bytes of a row
  int rows;        // stored rows
  int up_to_gate;  // CUTLASS, phase 1: rows between up and gate; 0 in phase 2
  int blocks4;     // CUTLASS: groups of four scales in a row

  __device__ __forceinline__ Weights(const Mxfp4MoeDecode& call, int phase) {
    const int k = phase == 0 ? call.hidden_stored : call.inter_stored;
    rows = phase == 0 ? 2 * call.inter_stored : call.hidden_stored;
    codes = phase == 0 ? call.w13 : call.w2;
    scales = phase == 0 ? call.s13 : call.s2;
    expert_codes = int64_t{rows} * (k / 2);
    expert_scales = int64_t{rows} * (k / 32);
    line = kLayout == Layout::kMarlin ? int64_t{rows} * 8 : k / 2;
    up_to_gate = phase == 0 ? call.inter_stored : 0;
    blocks4 = k / 128;
  }
};

template <Layout kLayout, int kWarps>
struct Lane {
  const uint8_t* codes;
  const uint8_t* scales;
  int64_t codes_step, codes_next, scales_next;
  int scales_step;

  __device__ __forceinline__ void seek(const Weights<kLayout>& from, int64_t expert, int tile, int ku, int lane) {
    codes = from.codes + expert * from.expert_codes;
    scales = from.scales + expert * from.expert_scales;
    if constexpr (kLayout == Layout::kMarlin) {
      codes += 4 * ku * from.line + tile * 512 + lane * 16;
      scales += (2 * ku + (lane >> 2)) * int64_t{from.rows} + tile * 64 + (lane & 3) * 16;  // eight lanes of them
      codes_step = from.line;
      codes_next = 4 * kWarps * from.line;
      scales_next = int64_t{2} * kWarps * from.rows;
      scales_step = 0;
    } else {
      const int odd = from.up_to_gate != 0 ? (lane >> 1) & 1 : 0;
      const int row = from.up_to_gate != 0 ? (odd ? 0 : from.up_to_gate) + 32 * tile + (lane >> 2) : 64 * tile + (lane >> 1);
      codes += row * from.line + ku * 32 + (lane & 1) * 16;
      codes_step = (from.up_to_gate != 0 ? 8 : 16) * from.line;
      codes_next = 32 * kWarps;
      const int first = from.up_to_gate != 0 ? ((lane & 1) ? 0 : from.up_to_gate) + 32 * tile + (lane >> 1) : 64 * tile + lane;
      scales += moe::swizzled_scale(first, 2 * ku & ~3, from.blocks4);
      scales_step = from.up_to_gate != 0 ? 256 : 4;
      scales_next = 256 * kWarps;
    }
  }

  __device__ __forceinline__ void next() {
    codes += codes_next;
    scales += scales_next;
  }

  __device__ __forceinline__ void fetch(uint32_t slot, int lane) const {
    if constexpr (kLayout == Layout::kMarlin) {
#pragma unroll
      for (int q = 0; q < 4; ++q) copy_async_16(slot + q * 512 + lane * 16, codes + q * codes_step);
      if (lane < 8) copy_async_16(slot + moe::kUnitBytes + lane * 16, scales);
    } else {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const int row = (lane >> 1) + 16 * q;
        copy_async_16_of_128(slot + row * 32 + (((lane & 1) ^ ((row >> 2) & 1)) * 16), codes + q * codes_step);
      }
      copy_async_4(slot + moe::kUnitBytes + lane * 4, scales);
      copy_async_4(slot + moe::kUnitBytes + 128 + lane * 4, scales + scales_step);
    }
  }
};

// What a lane takes of a unit from shared memory: all of it, before the slot is filled again.
template <Layout kLayout>
struct Held {
  uint32_t word[2][2][4];  // block, Marlin: half of its k | CUTLASS: row g or g + 8, fragment
  uint32_t scale[2][2];    // block; bytes as marlin_scale_row orders them

  __device__ __forceinline__ void load(const char* slot, int ku, int lane) {
    const int g = lane >> 2;
    if constexpr (kLayout == Layout::kMarlin) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const uint4 four = *reinterpret_cast<const uint4*>(slot + q * 512 + lane * 16);
#pragma unroll
        for (int i = 0; i < 4; ++i) word[q >> 1][q & 1][i] = word_of(four, i);
      }
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const uint2 two = *reinterpret_cast<const uint2*>(slot + moe::kUnitBytes + b * 64 + g * 8);
        scale[b][0] = two.x;
        scale[b][1] = two.y;
      }
    } else {
      uint32_t two[8];  // scales of both blocks for row g + 8 i
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int row = g + 8 * i;
#pragma unroll
        for (int b = 0; b < 2; ++b)
          word[b][i & 1][i >> 1] =
              *reinterpret_cast<const uint32_t*>(slot + row * 32 + ((b ^ ((row >> 2) & 1)) * 16) + (lane & 3) * 4);
        two[i] = *reinterpret_cast<const uint16_t*>(slot + moe::kUnitBytes + row * 4 + (ku & 1) * 2);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t low = __byte_perm(two[4 * half], two[4 * half + 2], 0x5140);       // rows 0 and 16: b0 b0 b1 b1
        const uint32_t high = __byte_perm(two[4 * half + 1], two[4 * half + 3], 0x5140);  // rows 8 and 24
        scale[0][half] = __byte_perm(low, high, 0x5410);
        scale[1][half] = __byte_perm(low, high, 0x7632);
      }
    }
  }

  __device__ __forceinline__ bool large() const {
    return moe::any_large(scale[0][0] | scale[0][1] | scale[1][0] | scale[1][1]);
  }

  // acc += this unit times the tokens, B's fragments for both blocks.
  __device__ __forceinline__ void add_to(float (&acc)[4][4], const uint4 (&tokens)[2], bool large, const moe::Powers& powers) const {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      float sum[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t first[4], second[4];
        moe::widen(word[b][0][i], first, powers);
        moe::widen(word[b][1][i], second, powers);
        if constexpr (kLayout == Layout::kMarlin) {
          multiply(sum[i], first[0], first[2], first[1], first[3], tokens[b].x, tokens[b].y);
          mxfp4::mma_16x8x16(sum[i], second[0], second[2], second[1], second[3], tokens[b].z, tokens[b].w);
        } else {
          multiply(sum[i], first[0], second[0], first[1], second[1], tokens[b].x, tokens[b].y);
          mxfp4::mma_16x8x16(sum[i], first[2], second[2], first[3], second[3], tokens[b].z, tokens[b].w);
        }
      }
      float factor[4][2];
      if (__builtin_expect(large, 0)) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            sum[i][c] *= moe::kLargeStep;
            if ((c & 1) == 0) factor[i][c >> 1] = moe::large_factor(byte_of(scale[b][i >> 1], (i & 1) + (c & 2)));
          }
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int half = 0; half < 2; ++half) factor[i][half] = moe::block_factor(byte_of(scale[b][i >> 1], (i & 1) + 2 * half), powers);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int c = 0; c < 4; ++c) acc[i][c] = fmaf(factor[i][c >> 1], sum[i][c], acc[i][c]);
    }
  }
};

}  // namespace
}  // namespace sparkforge
