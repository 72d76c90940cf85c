// The tile loop of the dense decode kernels: y[M, N] = x[M, K] W^T for M = 1..8, W in MXFP4.
//
// Bytes:       N K / 2 codes + N K / 32 scales, read once: 4.25 bits a weight (qkv of gpt-oss-120b, 5120 x 2880: 7.83 MB,
//              28.7 us at 273 GB/s); x once a block.
// Operations:  2 * 8 N K on the tensor cores (unused columns are zeros), and about two instructions a weight to widen it.
//
// Shape:       a block (or the blocks of a cluster, which share K) goes over the rows in passes of one or more tiles of 16,
//              four in Marlin's layout; its warps split K in steps. A warp holds a window of steps in registers: as soon
//              as one is widened, the same step of the next window is asked for. Its part of x stays in registers.
// Sums:        within a warp on the tensor cores, k ascending, in fp32; warps are added in order, then blocks of a cluster;
//              then the bias, then one rounding to bf16. The order depends on the plan alone, not on M or the row.
// PDL:         a block asks for its first weights before it waits for the kernel before, which may write x.
#pragma once

#include <sparkforge/mxfp4_layouts.cuh>
#include <sparkforge/pipeline.cuh>

#include "mxfp4_linear_decode.h"

namespace sparkforge::decode {

using namespace mxfp4;

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

struct Params {
  const uint16_t* x;
  const uint8_t* codes;
  const uint8_t* scales;
  const uint16_t* bias;
  uint16_t* y;
  int64_t n;
  int64_t stored_n;
  int k;
  int tokens;
  int steps;           // of K
  int steps_per_warp;  // of K; a warp past the end works on zeros
  int passes;          // over the rows
  Shifts shifts;
};

struct Yes {
  static constexpr bool value = true;
};

struct No {
  static constexpr bool value = false;
};

// Weights are read once: codes leave the first-level cache to x. Where `real` is false nothing is read and all is zero.
// None of these is a load through the read-only path (ld.global.nc, __ldg): the compiler moves such a load across the wait
// for the kernel before, weights to behind it and, worse, x to before it.
__device__ __forceinline__ uint4 load_16(const uint8_t* from, bool real) {
  uint4 v{};
  if (real)
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
  return v;
}

__device__ __forceinline__ uint2 load_8(const uint8_t* from, bool real) {
  uint2 v{};
  if (real) asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory");
  return v;
}

__device__ __forceinline__ uint32_t load_2(const uint8_t* from, bool real) {
  uint32_t v = 0;
  if (real) asm volatile("{\n.reg .u16 h;\nld.global.u16 h, [%1];\ncvt.u32.u16 %0, h;\n}" : "=r"(v) : "l"(from) : "memory");
  return v;
}

// x may be the kernel before's: kept in the caches, for all blocks read it.
__device__ __forceinline__ uint4 load_x_16(const void* from) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

__device__ __forceinline__ uint32_t load_x_4(const void* from) {
  uint32_t v;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}

__device__ __forceinline__ uint32_t load_1(const uint8_t* from, bool real) {
  uint32_t v = 0;
  if (real) asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}

// 16 x of one token from k on, as pairs; zeros beyond the tokens and beyond K (a multiple of 32, so never within).
__device__ __forceinline__ void load_x16(const Params& p, int token, int k, uint32_t* pairs) {
  uint4 low{};
  uint4 high{};
  if (token < p.tokens && k < p.k) {
    const uint16_t* from = p.x + int64_t{token} * p.k + k;
    low = load_x_16(from);
    high = load_x_16(from + 8);
  }
  pairs[0] = low.x, pairs[1] = low.y, pairs[2] = low.z, pairs[3] = low.w;
  pairs[4] = high.x, pairs[5] = high.y, pairs[6] = high.z, pairs[7] = high.w;
}

// Pairs (k, k + 1) of 8 x to pairs (k, k + 4), as nibbles come apart.
__device__ __forceinline__ void pair_by_4(uint32_t* x) {
  const uint32_t even[4] = {x[0], x[1], x[2], x[3]};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    x[2 * i] = __byte_perm(even[i], even[2 + i], 0x5410);
    x[2 * i + 1] = __byte_perm(even[i], even[2 + i], 0x7632);
  }
}

// A layout says where a lane finds its part of a step (Cursor), which x it multiplies with (load_x), and how the part
// becomes A fragments (multiply). Common to all:
//   kTiles, kRows   tiles of 16 rows of a pass, and 16 kTiles     kStepK   k of a step
//   Part            what a lane holds of a step                   kX       registers of x for a step
//   kChains         sums of 16 x 8 that run side by side; one beyond kTiles is added to the first
// A cursor stands at a warp's next window of kGroup steps; step() moves it, to the next pass after the last window.

// Our own packing: a step is a unit of 16 rows by 64 k of each of kMany tiles.
template <int kMany>
struct Packed {
  static constexpr int kTiles = kMany;
  static constexpr int kRows = kUnitRows * kTiles;
  static constexpr int kStepK = kUnitK;
  static constexpr int kX = 8;
  static constexpr int kChains = kTiles == 1 ? 2 : kTiles;

  struct Part {
    uint4 codes[kTiles];
    uint32_t scales[kTiles];  // of rows g and g + 8, in the two low bytes
  };

  template <int kGroup>
  struct Cursor {
    const uint8_t* codes;
    const uint8_t* scales;
    int64_t tile;       // bytes from a tile to the next
    int64_t next_pass;
    int tiles_left;     // from this pass on

    __device__ __forceinline__ Cursor(const Params& p, int pass, int stride, int first_step, int windows, int lane) {
      tile = int64_t{p.steps} * kUnitBytes;
      codes = p.codes + int64_t{pass} * kTiles * tile + first_step * kUnitBytes + lane * 16;
      scales = codes - lane * 16 + kUnitCodes + lane / 4 * 4 + lane % 4 / 2 * 2;
      next_pass = int64_t{stride} * kTiles * tile - windows * kGroup * kUnitBytes;
      tiles_left = static_cast<int>(packed_tiles(p.n)) - pass * kTiles;
    }

    __device__ __forceinline__ void load(const Params&, int i, bool real, Part& part) const {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const bool there = real && (kTiles == 1 || j < tiles_left);
        part.codes[j] = load_16(codes + j * tile + i * kUnitBytes, there);
        part.scales[j] = load_2(scales + j * tile + i * kUnitBytes, there);
      }
    }

    __device__ __forceinline__ void step(bool last, int stride) {
      const int64_t by = kGroup * kUnitBytes + (last ? next_pass : 0);
      codes += by;
      scales += by;
      if (kTiles > 1 && last) tiles_left -= stride * kTiles;
    }
  };

  static __device__ __forceinline__ void load_x(const Params& p, int step, int lane, uint32_t (&x)[kX]) {
    load_x16(p, lane / 4, step * kStepK + lane % 4 * 16, x);
  }

  static __device__ __forceinline__ uint32_t scales(const Part& part) {
    uint32_t all = 0;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) all |= part.scales[j];
    return all;
  }

  template <bool kWide>
  static __device__ __forceinline__ void multiply(const Params&, const Part& part, const uint32_t (&x)[kX],
                                                  float (&sum)[kChains][4]) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const Factor<kWide> factor[2] = {Factor<kWide>(part.scales[j] & 0xffu), Factor<kWide>(part.scales[j] >> 8)};
      const uint32_t words[4] = {part.codes[j].x, part.codes[j].y, part.codes[j].z, part.codes[j].w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        uint32_t a[4];
        widen_packed(words[w], a);
#pragma unroll
        for (int k = 0; k < 4; ++k) a[k] = factor[k % 2](a[k]);
        mma_16x8x16(sum[kTiles == 1 ? w % 2 : j], a[0], a[1], a[2], a[3], x[2 * w], x[2 * w + 1]);
      }
    }
  }

  static __device__ __forceinline__ int64_t bias_place(int64_t row) { return row; }
};

// [N, K/2] and [N, K/32]: a step is 16 rows by 128 k. A lane holds a block of 32 k of rows g and g + 8.
struct Rows {
  static constexpr int kTiles = 1;
  static constexpr int kRows = 16;
  static constexpr int kStepK = 4 * kBlock;
  static constexpr int kX = 16;
  static constexpr int kChains = 2;

  struct Part {
    uint4 low;
    uint4 high;
    uint32_t scales[2];
  };

  template <int kGroup>
  struct Cursor {
    const uint8_t* codes;   // of row g
    const uint8_t* scales;
    int64_t next_pass;      // in blocks, as all below
    int eight_rows;
    int blocks_left;        // of the row, from this lane's next on
    int rows_left;          // of the matrix, from row g on

    __device__ __forceinline__ Cursor(const Params& p, int pass, int stride, int first_step, int windows, int lane) {
      const int blocks = p.k / kBlock;
      const int64_t row = int64_t{pass} * kRows + lane / 4;
      const int block = 4 * first_step + lane % 4;
      codes = p.codes + (row * blocks + block) * kBlockBytes;
      scales = p.scales + row * blocks + block;
      next_pass = int64_t{stride} * kRows * blocks - windows * kGroup * 4;
      eight_rows = 8 * blocks;
      blocks_left = blocks - block;
      rows_left = static_cast<int>(p.n - row);
      row_of_warp = windows * kGroup * 4;
    }

    __device__ __forceinline__ void load(const Params&, int i, bool real, Part& part) const {
      const bool inside = real && 4 * i < blocks_left;
      const bool low = inside && rows_left > 0;
      const bool high = inside && rows_left > 8;
      part.low = load_16(codes + 4 * i * kBlockBytes, low);
      part.high = load_16(codes + (eight_rows + 4 * i) * int64_t{kBlockBytes}, high);
      part.scales[0] = load_1(scales + 4 * i, low);
      part.scales[1] = load_1(scales + eight_rows + 4 * i, high);
    }

    __device__ __forceinline__ void step(const bool last, int stride) {
      const int64_t by = 4 * kGroup + (last ? next_pass : 0);
      codes += by * kBlockBytes;
      scales += by;
      if (last) rows_left -= stride * kRows;
      blocks_left -= 4 * kGroup;
      if (last) blocks_left += row_of_warp;
    }

    int row_of_warp;        // blocks that all windows of the warp cover
  };

  static __device__ __forceinline__ void load_x(const Params& p, int step, int lane, uint32_t (&x)[kX]) {
    const int k = step * kStepK + lane % 4 * kBlock;
    load_x16(p, lane / 4, k, x);
    load_x16(p, lane / 4, k + 16 < p.k ? k + 16 : p.k, x + 8);
#pragma unroll
    for (int v = 0; v < 4; ++v) pair_by_4(x + 4 * v);
  }

  static __device__ __forceinline__ uint32_t scales(const Part& part) { return part.scales[0] | part.scales[1]; }

  template <bool kWide>
  static __device__ __forceinline__ void multiply(const Params& p, const Part& part, const uint32_t (&x)[kX],
                                                  float (&sum)[kChains][4]) {
    const Factor<kWide> of_low(part.scales[0]);
    const Factor<kWide> of_high(part.scales[1]);
    const uint32_t low[4] = {part.low.x, part.low.y, part.low.z, part.low.w};
    const uint32_t high[4] = {part.high.x, part.high.y, part.high.z, part.high.w};
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      uint32_t a[4];
      uint32_t b[4];
      widen_nibbles(low[v], a, p.shifts);
      widen_nibbles(high[v], b, p.shifts);
#pragma unroll
      for (int k = 0; k < 4; ++k) a[k] = of_low(a[k]), b[k] = of_high(b[k]);
#pragma unroll
      for (int w = 0; w < 2; ++w)
        mma_16x8x16(sum[w], a[2 * w], b[2 * w], a[2 * w + 1], b[2 * w + 1], x[4 * v + 2 * w], x[4 * v + 2 * w + 1]);
    }
  }

  static __device__ __forceinline__ int64_t bias_place(int64_t row) { return row; }
};

// Marlin's layout: a step is 64 rows by 32 k, two runs of 512 bytes of codes and 64 scales.
struct Marlin {
  static constexpr int kTiles = 4;
  static constexpr int kRows = kMarlinRows;
  static constexpr int kStepK = kBlock;
  static constexpr int kX = 4;
  static constexpr int kChains = 4;

  struct Part {
    uint4 codes[2];
    uint2 scales;
  };

  template <int kGroup>
  struct Cursor {
    const uint8_t* codes;
    const uint8_t* scales;
    int64_t run;        // bytes from one k16 to the next
    int64_t next_codes;
    int64_t next_scales;

    __device__ __forceinline__ Cursor(const Params& p, int pass, int stride, int first_step, int windows, int lane) {
      run = p.stored_n * 8;
      codes = p.codes + 2 * first_step * run + int64_t{pass} * 512 + lane * 16;
      scales = p.scales + first_step * p.stored_n + int64_t{pass} * kMarlinRows + lane / 4 * 8;
      next_codes = int64_t{stride} * 512 - 2 * windows * kGroup * run;
      next_scales = int64_t{stride} * kMarlinRows - windows * kGroup * p.stored_n;
    }

    __device__ __forceinline__ void load(const Params&, int i, bool real, Part& part) const {
      part.codes[0] = load_16(codes + 2 * i * run, real);
      part.codes[1] = load_16(codes + (2 * i + 1) * run, real);
      part.scales = load_8(scales + i * (run / 8), real);
    }

    __device__ __forceinline__ void step(bool last, int) {
      codes += 2 * kGroup * run;
      scales += kGroup * (run / 8);
      if (last) codes += next_codes, scales += next_scales;
    }
  };

  static __device__ __forceinline__ void load_x(const Params& p, int step, int lane, uint32_t (&x)[kX]) {
    const int token = lane / 4;
    const bool real = token < p.tokens && step < p.steps;
    const uint16_t* from = p.x + int64_t{token} * p.k + step * kStepK + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kX; ++i) x[i] = real ? load_x_4(from + 8 * i) : 0u;
  }

  static __device__ __forceinline__ uint32_t scales(const Part& part) { return part.scales.x | part.scales.y; }

  template <bool kWide>
  static __device__ __forceinline__ void multiply(const Params& p, const Part& part, const uint32_t (&x)[kX],
                                                  float (&sum)[kChains][4]) {
    const uint32_t words[2][4] = {{part.codes[0].x, part.codes[0].y, part.codes[0].z, part.codes[0].w},
                                  {part.codes[1].x, part.codes[1].y, part.codes[1].z, part.codes[1].w}};
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      // A word of scales: rows g of two tiles, then their rows g + 8.
      const uint32_t word = i < 2 ? part.scales.x : part.scales.y;
      const Factor<kWide> of_low(byte_of(word, i % 2));
      const Factor<kWide> of_high(byte_of(word, i % 2 + 2));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t a[4];
        widen_nibbles(words[half][i], a, p.shifts);
        a[0] = of_low(a[0]), a[1] = of_low(a[1]), a[2] = of_high(a[2]), a[3] = of_high(a[3]);
        mma_16x8x16(sum[i], a[0], a[2], a[1], a[3], x[2 * half], x[2 * half + 1]);
      }
    }
  }

  static __device__ __forceinline__ int64_t bias_place(int64_t row) { return marlin_bias(row); }
};

// Columns of the partial sums in shared memory stand this many floats apart, so that no two lanes meet in a bank.
template <class L>
constexpr int kColumn = L::kRows + 4;

template <class L>
constexpr int kPartial = kMaxDecodeTokens * kColumn<L>;  // floats of one warp

constexpr int kPartialBuffers = 2;  // passes whose sums are kept at once, so that a block meets once a pass

// Floats of a block's sums that the first block of its cluster receives, for kSplit > 1.
template <class L>
constexpr int kReceived = kMaxDecodeTokens * L::kRows;

// How a kernel is cut.
template <int kWarps_, int kSteps_, int kGroup_, int kSplit_ = 1>
struct Plan {
  static constexpr int kWarps = kWarps_;  // of a block; 0 with kSteps 0: any number
  static constexpr int kSteps = kSteps_;  // of K to a warp, whose x stay in registers; 0: any number, x is read for each pass
  static constexpr int kGroup = kGroup_;  // steps of a window
  static constexpr int kSplit = kSplit_;  // blocks of a cluster that share K; above 1 a block makes one pass
  static constexpr int kThreads = (kWarps ? kWarps : 16) * kWarp;
  static_assert(kSteps % kGroup == 0 && (kSteps == 0) == (kWarps == 0));
};

// Dynamic shared memory of a block, bytes.
template <class L, class P>
constexpr size_t shared_bytes(int warps) {
  return sizeof(float) * (static_cast<size_t>(warps) * kPartial<L> * kPartialBuffers + (P::kSplit - 1) * kReceived<L>);
}

template <class L, class P, class Epilogue>
__device__ __forceinline__ void tile_loop(const Params& p, Epilogue& epilogue) {
  extern __shared__ __align__(128) float shared[];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int warps = P::kWarps ? P::kWarps : blockDim.x / kWarp;
  const int rank = P::kSplit > 1 ? blockIdx.x % P::kSplit : 0;
  const int steps_per_warp = P::kSteps ? P::kSteps : p.steps_per_warp;
  const int first_step = (rank * warps + warp) * steps_per_warp;
  const int windows = steps_per_warp / P::kGroup;
  const int first_pass = blockIdx.x / P::kSplit;
  const int stride = gridDim.x / P::kSplit;
  float* received = shared + kPartialBuffers * warps * kPartial<L>;

  let_next_kernel_start();
  typename L::template Cursor<P::kGroup> cursor(p, first_pass, stride, first_step, windows, lane);
  typename L::Part part[P::kGroup];
  int asked_pass = first_pass;  // of the window that the cursor stands at
  int asked = 0;
  const auto ask = [&](int i) {
    const int step = first_step + asked * P::kGroup + i;
    cursor.load(p, i, asked_pass < p.passes && step < p.steps, part[i]);
  };
  const auto next_window = [&] {
    const bool last = ++asked == windows;
    cursor.step(last, stride);
    if (last) asked = 0, asked_pass += stride;
  };
#pragma unroll
  for (int i = 0; i < P::kGroup; ++i) ask(i);
  next_window();
  if constexpr (P::kSplit > 1) arrive_cluster();  // so that nobody writes to a block that has not started
  wait_for_previous_kernel();
  uint32_t held[P::kSteps ? P::kSteps : 1][L::kX];
#pragma unroll
  for (int i = 0; i < P::kSteps; ++i) L::load_x(p, first_step + i, lane, held[i]);

  const int column = lane % 4 * 2;
  float* mine = shared + warp * kPartial<L> + column * kColumn<L> + lane / 4;
  const int outputs = L::kRows * p.tokens;
  int buffer = 0;
  for (int pass = first_pass; pass < p.passes; pass += stride) {
    epilogue.template begin<L>(p, pass);
    float sum[L::kChains][4] = {};
#pragma unroll
    for (int window = 0; window < windows; ++window) {
      uint32_t scales = 0;
#pragma unroll
      for (int i = 0; i < P::kGroup; ++i) scales |= L::scales(part[i]);
      const auto multiply = [&](auto wide) {
#pragma unroll
        for (int i = 0; i < P::kGroup; ++i) {
          if constexpr (P::kSteps == 0) L::load_x(p, first_step + window * P::kGroup + i, lane, held[0]);
          L::template multiply<decltype(wide)::value>(p, part[i], held[P::kSteps ? window * P::kGroup + i : 0], sum);
          ask(i);
        }
      };
      if (__any_sync(kAllLanes, (scales & kBeyondFast) != 0))
        multiply(Yes{});
      else
        multiply(No{});
      next_window();
    }

    if (column < p.tokens) {
      float* at = mine + buffer;
#pragma unroll
      for (int i = 0; i < L::kTiles; ++i) {
        float total[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) total[j] = L::kChains > L::kTiles ? sum[i][j] + sum[L::kChains - 1][j] : sum[i][j];
        at[16 * i] = total[0];
        at[16 * i + kColumn<L>] = total[1];
        at[16 * i + 8] = total[2];
        at[16 * i + kColumn<L> + 8] = total[3];
      }
    }
    __syncthreads();
    const float* all = shared + buffer;
    const auto total_of = [&](int out) {
      const float* from = all + out / L::kRows * kColumn<L> + out % L::kRows;
      float total = 0.0f;
      if constexpr (P::kWarps != 0) {
        float parts[P::kWarps];
#pragma unroll
        for (int w = 0; w < P::kWarps; ++w) parts[w] = from[w * kPartial<L>];
#pragma unroll
        for (int w = 0; w < P::kWarps; ++w) total += parts[w];
      } else {
        for (int w = 0; w < warps; ++w) total += from[w * kPartial<L>];
      }
      return total;
    };
    if constexpr (P::kSplit > 1) {
      wait_cluster();
      if (rank != 0)
        for (int out = threadIdx.x; out < outputs; out += blockDim.x)
          write_to_block(received + (rank - 1) * kReceived<L> + out, 0, total_of(out));
      arrive_cluster();
      if (rank == 0) wait_cluster();
    }
    if (rank == 0)
      for (int out = epilogue.thread(); out < outputs; out += blockDim.x) {
        float total = total_of(out);
        if constexpr (P::kSplit > 1) {
#pragma unroll
          for (int other = 0; other < P::kSplit - 1; ++other) total += received[other * kReceived<L> + out];
        }
        epilogue.template take<L>(p, pass, out, total);
      }
    epilogue.end(p, outputs);
    buffer = buffer == 0 ? warps * kPartial<L> : 0;
  }
}

// Adds the bias, which it asks for before the sums are there, and writes bf16. The threads that do it change from pass to
// pass, so that no warp falls behind.
struct Store {
  int first = 0;
  float bias = 0.0f;

  __device__ __forceinline__ int thread() const {
    const int mine = static_cast<int>(threadIdx.x) - first;
    return mine < 0 ? mine + static_cast<int>(blockDim.x) : mine;
  }

  template <class L>
  static __device__ __forceinline__ float bias_of(const Params& p, int64_t row) {
    return p.bias != nullptr && row < p.n ? bf16_to_float(__ldg(p.bias + L::bias_place(row))) : 0.0f;
  }

  template <class L>
  __device__ __forceinline__ void begin(const Params& p, int pass) {
    if (p.bias != nullptr && thread() < L::kRows * p.tokens) bias = bias_of<L>(p, int64_t{pass} * L::kRows + thread() % L::kRows);
  }

  template <class L>
  __device__ __forceinline__ void take(const Params& p, int pass, int out, float total) const {
    const int64_t row = int64_t{pass} * L::kRows + out % L::kRows;
    if (row >= p.n) return;
    if (p.bias != nullptr) total += out == thread() ? bias : bias_of<L>(p, row);
    p.y[int64_t{out / L::kRows} * p.n + row] = float_to_bf16(total);
  }

  __device__ __forceinline__ void end(const Params&, int outputs) {
    first += (outputs + kWarp - 1) / kWarp * kWarp;
    if (first >= static_cast<int>(blockDim.x)) first = 0;
  }
};

}  // namespace sparkforge::decode
