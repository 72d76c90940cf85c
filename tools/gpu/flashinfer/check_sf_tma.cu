// The copy of the scale factors of both operands by a real TMA unit, with the descriptors and coordinates of the SM12x
// grouped GEMM, for tiles of 32, 64 and 128 columns. Runs on sm_90 and later. A copy moves the whole block of 128 that
// holds the tile; a copy that starts inside of 16 bytes is an illegal instruction there (twin/tma_start.cu).
//
//   python check_sf_tma.py --tree SOURCES --json RESULT      (compiles this and runs it)
//
// Prints a line of JSON for each tile, operand and planted fault; exit status 1 if a scale factor is wrong or a fault
// is not seen. A fault is put into the coordinates of the copy or into what is read of it:
//   block    the next block is copied
//   tile     the columns of the block's first tile are read, whichever tile it is
//   columns  the tile's columns are looked for half a tile further on
//   depth    the copy is that of the next step of depth
// The layouts of the first group, from which the kernel makes coordinates, are garbage: FlashInfer leaves them so where
// the first expert has no tokens. What is copied is the second group.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/group_array_problem_shape.hpp"

using namespace cute;

#ifndef WEIGHT  // FP4 weights as on SM12x; their own copy, which sm_90 may lack, is set up and never started
#define WEIGHT cutlass::mx_float4_t<cutlass::float_e2m1_t>
#define WEIGHT_ALIGNMENT 128
#endif

constexpr int kRows = 4 * 128 + 50, kColumns = 5 * 128 + 70, kDepth = 384, kStorage = 4096;
constexpr uint8_t kBehind = 0xDD, kUntouched = 0xEE;
enum Fault { kNone, kBlock, kTile, kColumnsShifted, kDepthShifted, kFaults };
constexpr char const* kFaultName[] = {"none", "block", "tile", "columns", "depth"};

#define CHECK(call)                                                    \
  do {                                                                 \
    cudaError_t const status = (call);                                 \
    if (status != cudaSuccess) {                                       \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status)); \
      std::exit(2);                                                    \
    }                                                                  \
  } while (0)

// Weights on M, tokens on N: the tile that decoding uses.
template <int TileN>
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm120, cutlass::arch::OpClassBlockScaledTensorOp, WEIGHT, cutlass::layout::RowMajor*,
    WEIGHT_ALIGNMENT, cutlass::mx_float8_t<cutlass::float_e4m3_t>, cutlass::layout::ColumnMajor*, 16, float,
    Shape<_128, Int<TileN>, _128>, Shape<_1, _1, _1>, cutlass::gemm::collective::StageCountAutoCarveout<20480>,
    cutlass::gemm::collective::KernelScheduleAuto>::CollectiveOp;

// Copies one tile of scale factors into `storage` and waits for it. All threads of the warp call it.
template <class Tma, class Map, class Source, class Shared>
__device__ void copy_and_wait(Tma const& tma, Map map, Source const& source, Shared const& shared, uint64_t& barrier,
                              uint8_t* storage, uint32_t bytes, int depth, uint32_t phase) {
  for (int i = threadIdx.x; i < kStorage; i += 32) storage[i] = kUntouched;
  cutlass::arch::fence_view_async_shared();
  __syncwarp();
  auto slice = tma.get_slice(0);
  auto from = slice.partition_S(source);
  auto to = slice.partition_D(shared);
  if (threadIdx.x == 0) {
    set_barrier_transaction_bytes(barrier, bytes);
    copy(tma.with(map, barrier), from(_, _, _, depth), to(_, _, _, 0));
  }
  wait_barrier(barrier, phase);
}

// One warp for each tile and step of depth: rewrites the descriptors as the kernel does, copies, and stores what mma()
// would read, [tile][depth][column][k / 32]. Operand A where IsA.
template <class Main, int Tile, bool IsA>
__global__ void copy_tile(__grid_constant__ typename Main::Params const params, uint8_t* seen, int fault) {
  extern __shared__ uint8_t raw[];
  struct alignas(128) Storage {
    typename Main::TensorMapStorage tensormaps;
    alignas(128) uint8_t scales[kStorage];
    alignas(8) uint64_t barrier;
  };
  auto& storage = *reinterpret_cast<Storage*>((reinterpret_cast<uintptr_t>(raw) + 127) & ~uintptr_t(127));
  int const block = blockIdx.x * gridDim.y + blockIdx.y;
  auto const problem = make_shape(kRows, kColumns, kDepth, 1);

  Main mainloop;
  auto maps = mainloop.tensormaps_init(params, storage.tensormaps, gridDim.x * gridDim.y, block);
  mainloop.tensormaps_perform_update(storage.tensormaps, params, maps, problem, 1);
  __syncwarp();
  mainloop.tensormaps_cp_fence_release(storage.tensormaps, maps);
  mainloop.tensormaps_fence_acquire(maps);
  if (threadIdx.x == 0) initialize_barrier(storage.barrier, 1);
  __syncwarp();

  constexpr int TilesOfBlock = 128 / Tile;
  int const blocks = (int(gridDim.x) + TilesOfBlock - 1) / TilesOfBlock;
  int const tile = blockIdx.x, from_block = (tile / TilesOfBlock + (fault == kBlock)) % blocks;
  int const depth = fault == kDepthShifted ? int(blockIdx.y + 1) % gridDim.y : int(blockIdx.y);
  int const shift = fault == kColumnsShifted ? Tile / 2 : 0;
  auto tensors = mainloop.load_init(problem, params);
  uint8_t* out = seen + size_t(block) * Tile * 4;
  auto store = [&](auto const& columns) {
    for (int i = threadIdx.x; i < Tile * 4; i += 32) {
      int const column = (i / 4 + shift) % Tile;
      out[i] = *reinterpret_cast<uint8_t const*>(raw_pointer_cast(&columns(column, (i % 4) * 32, 0)));
    }
  };
  if constexpr (IsA) {
    auto shared = make_tensor(make_smem_ptr(reinterpret_cast<typename Main::ElementSF*>(storage.scales)),
                              typename Main::SmemLayoutSFA{});
    copy_and_wait(params.tma_load_sfa, get<2>(maps), get<2>(tensors)(_, _, from_block, _, 0), shared, storage.barrier,
                  storage.scales, cosize(take<0, 2>(typename Main::SmemLayoutSFA{})), depth, 0);
    store(shared);
  } else {
    auto shared = make_tensor(make_smem_ptr(reinterpret_cast<typename Main::ElementSF*>(storage.scales)),
                              typename Main::SmemLayoutSFB{});
    copy_and_wait(params.tma_load_sfb, get<3>(maps), get<3>(tensors)(_, _, from_block, _, 0), shared, storage.barrier,
                  storage.scales, cosize(take<0, 2>(typename Main::SmemLayoutSFB{})), depth, 0);
    static_assert(Main::TilesOfBlockSFB == TilesOfBlock);
    store(Main::columns_SFB(shared, fault == kTile ? tile / TilesOfBlock * TilesOfBlock : tile));
  }
}

// What the device finds of two groups: garbage for the first, `value` for the second.
template <class T>
T* on_device(T const& value) {
  T* pointer;
  CHECK(cudaMalloc(&pointer, 2 * sizeof(T)));
  CHECK(cudaMemset(pointer, 0xFF, sizeof(T)));
  CHECK(cudaMemcpy(pointer + 1, &value, sizeof(T), cudaMemcpyHostToDevice));
  return pointer;
}

template <int TileN, bool IsA>
bool check() {
  using Main = Mainloop<TileN>;
  constexpr int Tile = IsA ? 128 : TileN, extent = IsA ? kRows : kColumns;
  auto const shape = make_shape(kRows, kColumns, kDepth, 1);
  auto layout_a = Main::Sm1xxBlkScaledConfig::tile_atom_to_shape_SFA(shape);
  auto layout_b = Main::Sm1xxBlkScaledConfig::tile_atom_to_shape_SFB(shape);
  auto const offset = [&](int n, int k) { return IsA ? int(layout_a(n, k, 0)) : int(layout_b(n, k, 0)); };
  size_t const bytes = IsA ? cosize(layout_a) : cosize(layout_b);
  int const tiles = (extent + Tile - 1) / Tile, depths = kDepth / 128;

  // What the grouped kernel finds on the device: arrays of pointers, strides and layouts of its groups.
  uint8_t *operand, *scales, *other, *seen, *workspace;
  CHECK(cudaMalloc(&operand, size_t(kColumns + kRows) * kDepth));
  CHECK(cudaMalloc(&scales, bytes + 4096));
  CHECK(cudaMalloc(&other, IsA ? cosize(layout_b) : cosize(layout_a)));
  CHECK(cudaMalloc(&seen, size_t(tiles) * depths * Tile * 4));
  CHECK(cudaMalloc(&workspace, size_t(tiles) * depths * 4 * 128));
  using SF = typename Main::ElementSF;
  typename Main::Arguments arguments{};
  arguments.ptr_A = on_device(reinterpret_cast<typename Main::ElementA const*>(operand));
  arguments.ptr_B = on_device(reinterpret_cast<typename Main::ElementB const*>(operand));
  arguments.ptr_SFA = on_device(reinterpret_cast<SF const*>(IsA ? scales : other));
  arguments.ptr_SFB = on_device(reinterpret_cast<SF const*>(IsA ? other : scales));
  typename Main::InternalStrideA stride_a{};
  typename Main::InternalStrideB stride_b{};
  get<0>(stride_a) = kDepth;
  get<0>(stride_b) = kDepth;
  arguments.dA = on_device(stride_a);
  arguments.dB = on_device(stride_b);
  arguments.layout_SFA = on_device(layout_a);
  arguments.layout_SFB = on_device(layout_b);
  using Problem = cutlass::gemm::GroupProblemShape<Shape<int, int, int>>;
  auto const params = Main::to_underlying_arguments(Problem{2, nullptr, nullptr}, arguments, workspace);

  bool right = true;
  std::vector<uint8_t> memory(bytes + 4096), found(size_t(tiles) * depths * Tile * 4);
  for (int fault = kNone; fault < kFaults; ++fault) {
    if (fault == kTile && Tile == 128) continue;  // the tile is the block
    long compared = 0, wrong = 0;
    for (int pass = 0; pass < 2; ++pass) {  // a byte of the identity of each scale factor at a time
      auto byte_of = [&](int n, int k) { return uint8_t((n * (kDepth / 32) + k / 32 + 1) >> (8 * pass)); };
      memory.assign(memory.size(), kBehind);
      for (int n = 0; n < (extent + 127) / 128 * 128; ++n) {
        for (int k = 0; k < kDepth; k += 32) memory[offset(n, k)] = byte_of(n, k);
      }
      CHECK(cudaMemcpy(scales, memory.data(), memory.size(), cudaMemcpyHostToDevice));
      CHECK(cudaMemset(seen, kUntouched, found.size()));
      copy_tile<Main, Tile, IsA><<<dim3(tiles, depths), 32, 8192>>>(params, seen, fault);
      CHECK(cudaGetLastError());
      CHECK(cudaDeviceSynchronize());
      CHECK(cudaMemcpy(found.data(), seen, found.size(), cudaMemcpyDeviceToHost));
      for (int tile = 0; tile < tiles; ++tile) {
        for (int depth = 0; depth < depths; ++depth) {
          size_t const block = size_t(tile) * depths + depth;
          for (int column = 0; column < Tile && tile * Tile + column < extent; ++column) {
            for (int k = 0; k < 4; ++k) {
              compared += 1;
              wrong += found[(block * Tile + column) * 4 + k] != byte_of(tile * Tile + column, depth * 128 + k * 32);
            }
          }
        }
      }
    }
    bool const whole = compared == 2L * extent * (kDepth / 32);
    right &= whole && (fault == kNone ? wrong == 0 : wrong > 0);
    std::printf(
        "{\"operand\": \"%s\", \"tile\": \"128x%dx128\", \"tiles\": %d, \"fault\": \"%s\", \"compared\": %ld, "
        "\"wrong\": %ld}\n",
        IsA ? "A" : "B", TileN, tiles, kFaultName[fault], compared, wrong);
  }
  return right;
}

int main() {
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  std::printf("{\"device\": \"%s\", \"capability\": [%d, %d]}\n", properties.name, properties.major, properties.minor);
  bool right = true;
  right &= check<128, false>();
  right &= check<64, false>();
  right &= check<32, false>();
  right &= check<128, true>();
  right &= check<64, true>();
  right &= check<32, true>();
  return right ? 0 : 1;
}
