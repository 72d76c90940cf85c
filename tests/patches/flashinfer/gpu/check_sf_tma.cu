// The copy of the scale factors of operand B by a real TMA unit, with the descriptors and coordinates of the SM12x
// grouped GEMM, for tiles of 32, 64 and 128 columns. Runs on sm_90 and later; what it shows of sm_12x is that a copy
// may start inside of a block, and that what lies behind the tensor arrives as zeros and is not read.
//
//   nvcc -std=c++17 -arch=sm_90a --expt-relaxed-constexpr -I<cutlass>/include -I<cutlass>/tools/util/include \
//        check_sf_tma.cu -o check_sf_tma -lcuda && ./check_sf_tma
//
// Prints a line of JSON for each tile; exit status 1 if a scale factor is wrong. The tensor ends where its allocation
// ends, so that under compute-sanitizer a read behind it is an error.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/group_array_problem_shape.hpp"

using namespace cute;

constexpr int kRows = 128, kColumns = 5 * 128 + 70, kDepth = 384;

#define CHECK(call)                                                                         \
  do {                                                                                      \
    cudaError_t const status = (call);                                                      \
    if (status != cudaSuccess) {                                                            \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status));                  \
      std::exit(2);                                                                         \
    }                                                                                       \
  } while (0)

// Weights on M, tokens on N: the tile that decoding uses.
template <int TileN>
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm120, cutlass::arch::OpClassBlockScaledTensorOp, cutlass::mx_float4_t<cutlass::float_e2m1_t>,
    cutlass::layout::RowMajor*, 128, cutlass::mx_float8_t<cutlass::float_e4m3_t>, cutlass::layout::ColumnMajor*, 16,
    float, Shape<_128, Int<TileN>, _128>, Shape<_1, _1, _1>, cutlass::gemm::collective::StageCountAutoCarveout<20480>,
    cutlass::gemm::collective::KernelScheduleAuto>::CollectiveOp;

// One warp for each tile and step of depth: rewrites the descriptors as the kernel does, copies, and stores what mma()
// would read, [tile][depth][column][k / 32].
template <class Main, int TileN>
__global__ void copy_tile(__grid_constant__ typename Main::Params const params, uint8_t* seen) {
  extern __shared__ uint8_t raw[];
  struct alignas(128) Storage {
    typename Main::TensorMapStorage tensormaps;
    alignas(128) uint8_t scales[4096];
    alignas(8) uint64_t barrier;
  };
  auto& storage = *reinterpret_cast<Storage*>((reinterpret_cast<uintptr_t>(raw) + 127) & ~uintptr_t(127));
  int const tile = blockIdx.x, depth = blockIdx.y, block = blockIdx.x * gridDim.y + blockIdx.y;
  auto const problem = make_shape(kRows, kColumns, kDepth, 1);

  Main mainloop;
  auto maps = mainloop.tensormaps_init(params, storage.tensormaps, gridDim.x * gridDim.y, block);
  mainloop.tensormaps_perform_update(storage.tensormaps, params, maps, problem, 0);
  __syncwarp();
  mainloop.tensormaps_cp_fence_release(storage.tensormaps, maps);
  mainloop.tensormaps_fence_acquire(maps);

  auto sSFB = make_tensor(make_smem_ptr(reinterpret_cast<typename Main::ElementSF*>(storage.scales)),
                          typename Main::SmemLayoutSFB{});
  for (int i = threadIdx.x; i < 4096; i += 32) storage.scales[i] = 0xEE;
  if (threadIdx.x == 0) initialize_barrier(storage.barrier, 1);
  cutlass::arch::fence_view_async_shared();
  __syncwarp();
  auto tensors = mainloop.load_init(problem, params);
  auto slice = params.tma_load_sfb.get_slice(0);
  auto from = slice.partition_S(get<3>(tensors)(_, _, tile, _, 0));
  auto to = slice.partition_D(sSFB);
  if (threadIdx.x == 0) {
    set_barrier_transaction_bytes(storage.barrier, cosize(take<0, 2>(typename Main::SmemLayoutSFB{})));
    copy(params.tma_load_sfb.with(get<3>(maps), storage.barrier), from(_, _, _, depth), to(_, _, _, 0));
  }
  wait_barrier(storage.barrier, 0);
  auto columns = Main::first_columns_SFB(sSFB);
  uint8_t* out = seen + size_t(block) * TileN * 4;
  for (int i = threadIdx.x; i < TileN * 4; i += 32) {
    out[i] = *reinterpret_cast<uint8_t const*>(raw_pointer_cast(&columns(i / 4, (i % 4) * 32, 0)));
  }
}

template <int TileN>
bool check() {
  using Main = Mainloop<TileN>;
  auto layout = Main::Sm1xxBlkScaledConfig::tile_atom_to_shape_SFB(make_shape(kRows, kColumns, kDepth, 1));
  auto layout_a = Main::Sm1xxBlkScaledConfig::tile_atom_to_shape_SFA(make_shape(kRows, kColumns, kDepth, 1));
  size_t const bytes = cosize(layout);
  int const tiles = (kColumns + TileN - 1) / TileN, depths = kDepth / 128;

  // What the grouped kernel finds on the device: arrays of pointers, strides and layouts of its groups.
  uint8_t *operand, *scales, *scales_a, *seen, *workspace;
  CHECK(cudaMalloc(&operand, size_t(kColumns + kRows) * kDepth));
  CHECK(cudaMalloc(&scales, bytes));
  CHECK(cudaMalloc(&scales_a, cosize(layout_a)));
  CHECK(cudaMalloc(&seen, size_t(tiles) * depths * TileN * 4));
  CHECK(cudaMalloc(&workspace, size_t(tiles) * depths * 4 * 128));
  typename Main::Arguments arguments{};
  auto on_device = [](auto const& value) {
    using Value = std::remove_cv_t<std::remove_reference_t<decltype(value)>>;
    Value* pointer;
    CHECK(cudaMalloc(&pointer, sizeof(Value)));
    CHECK(cudaMemcpy(pointer, &value, sizeof(Value), cudaMemcpyHostToDevice));
    return pointer;
  };
  arguments.ptr_A = on_device(reinterpret_cast<typename Main::ElementA const*>(operand));
  arguments.ptr_B = on_device(reinterpret_cast<typename Main::ElementB const*>(operand));
  arguments.ptr_SFA = on_device(reinterpret_cast<typename Main::ElementSF const*>(scales_a));
  arguments.ptr_SFB = on_device(reinterpret_cast<typename Main::ElementSF const*>(scales));
  typename Main::InternalStrideA stride_a{};
  typename Main::InternalStrideB stride_b{};
  get<0>(stride_a) = kDepth;
  get<0>(stride_b) = kDepth;
  arguments.dA = on_device(stride_a);
  arguments.dB = on_device(stride_b);
  arguments.layout_SFA = on_device(layout_a);
  arguments.layout_SFB = on_device(layout);
  using Problem = cutlass::gemm::GroupProblemShape<Shape<int, int, int>>;
  auto const params = Main::to_underlying_arguments(Problem{1, nullptr, nullptr}, arguments, workspace);

  long compared = 0, wrong = 0;
  std::vector<uint8_t> memory(bytes), found(size_t(tiles) * depths * TileN * 4);
  for (int pass = 0; pass < 2; ++pass) {  // a byte of the identity of each scale factor at a time
    auto byte_of = [&](int n, int k) { return uint8_t((n * (kDepth / 32) + k / 32 + 1) >> (8 * pass)); };
    for (int n = 0; n < int(size<0>(layout)); ++n) {
      for (int k = 0; k < kDepth; k += 32) memory[layout(n, k, 0)] = byte_of(n, k);
    }
    CHECK(cudaMemcpy(scales, memory.data(), bytes, cudaMemcpyHostToDevice));
    copy_tile<Main, TileN><<<dim3(tiles, depths), 32, 8192>>>(params, seen);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(found.data(), seen, found.size(), cudaMemcpyDeviceToHost));
    for (int tile = 0; tile < tiles; ++tile) {
      for (int depth = 0; depth < depths; ++depth) {
        for (int column = 0; column < TileN && tile * TileN + column < kColumns; ++column) {
          for (int k = 0; k < 4; ++k) {
            compared += 1;
            wrong += found[((size_t(tile) * depths + depth) * TileN + column) * 4 + k] !=
                     byte_of(tile * TileN + column, depth * 128 + k * 32);
          }
        }
      }
    }
  }
  std::printf("{\"check\": \"sf_tma\", \"tile\": \"128x%dx128\", \"compared\": %ld, \"wrong\": %ld}\n", TileN, compared, wrong);
  return wrong == 0 && compared == 2L * kColumns * (kDepth / 32);
}

int main() {
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  std::printf("{\"device\": \"%s\", \"capability\": \"%d.%d\"}\n", properties.name, properties.major, properties.minor);
  bool const right = check<128>() & check<64>() & check<32>();
  return right ? 0 : 1;
}
