// The way of the scale factors of operand B in the SM12x grouped GEMM, evaluated on the host.
//
// The collective, its tensor maps, its coordinates and its shared-memory layouts are CUTLASS's own. Two things
// are modelled: the driver's encoding, which records the descriptor, and the copy engine, which moves a box of it
// (elements outside of the tensor arrive as zeros; a start inside of 16 bytes is an illegal instruction on a GPU, and
// counted here). Every scale factor of every tile must arrive where mma() looks. The layout of the first group, from
// which the kernel makes its coordinates, is garbage, as FlashInfer leaves it where the first expert has no tokens.
// Arguments: what to plant: "none", "block" (mma() looks at the first tile of the block), "shift" (mma() looks 16 bytes
// further), "inside" (the copy starts at the tile, not at its block). Prints
// "<scale factors compared> <wrong> <copies from inside of 16 bytes> <stages> <bytes a stage announces> <it moves>".
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/group_array_problem_shape.hpp"

using namespace cute;

struct Descriptor {
  CUtensorMapDataType type;
  unsigned rank;
  std::array<unsigned, 5> box;
};
static std::vector<Descriptor> encoded;

extern "C" CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType type, cuuint32_t rank, void*,
                                           cuuint64_t const*, cuuint64_t const*, cuuint32_t const* box,
                                           cuuint32_t const*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  Descriptor descriptor{type, rank, {1, 1, 1, 1, 1}};
  for (unsigned i = 0; i < rank; ++i) descriptor.box[i] = box[i];
  encoded.push_back(descriptor);
  return CUDA_SUCCESS;
}
extern "C" {
CUresult cuGetErrorString(CUresult, char const** text) { return *text = "", CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult, char const** text) { return *text = "", CUDA_SUCCESS; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
char const* cudaGetErrorString(cudaError_t) { return ""; }
}

#ifdef SWAPPED  // weights on M, tokens on N
using ElementPairA = cutlass::mx_float4_t<cutlass::float_e2m1_t>;
using ElementPairB = cutlass::mx_float8_t<cutlass::float_e4m3_t>;
constexpr int AlignmentA = 128, AlignmentB = 16;
#else
using ElementPairA = cutlass::mx_float8_t<cutlass::float_e4m3_t>;
using ElementPairB = cutlass::mx_float4_t<cutlass::float_e2m1_t>;
constexpr int AlignmentA = 16, AlignmentB = 128;
#endif
using TileShape = Shape<_128, Int<TILE_N>, _128>;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm120, cutlass::arch::OpClassBlockScaledTensorOp, ElementPairA, cutlass::layout::RowMajor*,
    AlignmentA, ElementPairB, cutlass::layout::ColumnMajor*, AlignmentB, float, TileShape, Shape<_1, _1, _1>,
    cutlass::gemm::collective::StageCountAutoCarveout<20480>,
    cutlass::gemm::collective::KernelScheduleAuto>::CollectiveOp;
using Problem = cutlass::gemm::GroupProblemShape<Shape<int, int, int>>;

constexpr int kRows = 256, kColumns = 5 * 128 + 70, kDepth = 384;  // columns: five blocks and a part of one

int main(int, char** argv) {
  std::string const planted = argv[1];
  using Config = typename Mainloop::Sm1xxBlkScaledConfig;
  auto layout = Config::tile_atom_to_shape_SFB(make_shape(kRows, kColumns, kDepth, 1));
  auto layout_a = Config::tile_atom_to_shape_SFA(make_shape(kRows, kColumns, kDepth, 1));
  size_t const bytes = cosize(layout);

  typename Mainloop::Arguments arguments{};
  arguments.layout_SFA = &layout_a;
  decltype(layout) first_group;
  std::memset(&first_group, 0xFF, sizeof first_group);
  arguments.layout_SFB = &first_group;
  auto const params = Mainloop::to_underlying_arguments(Problem{1, nullptr, nullptr}, arguments, nullptr);
  if (encoded.size() != 4 || encoded[3].type != CU_TENSOR_MAP_DATA_TYPE_UINT16) return std::printf("descriptors\n"), 1;
  Descriptor const& descriptor = encoded[3];  // in the order A, B, SFA, SFB

  // What tensormaps_replace_global_tensor_properties writes into the descriptor for this problem.
  cute::array<uint32_t, 5> dims{1, 1, 1, 1, 1};
  cute::array<uint64_t, 5> strides{0, 0, 0, 0, 0};
  typename Mainloop::ElementSF const* null = nullptr;
  cute::detail::fill_tma_gmem_shape_stride(params.tma_load_sfb, make_tensor(null, layout), dims, strides);

  auto tensors = Mainloop{}.load_init(make_shape(kRows, kColumns, kDepth, 1), params);
  auto gSFB_nkl = get<3>(tensors);
  auto slice = params.tma_load_sfb.get_slice(0);

  std::vector<uint8_t> memory(bytes), shared(cosize_v<typename Mainloop::SmemLayoutSFB> + 64);
  long compared = 0, wrong = 0, misaligned = 0;
  unsigned moved = 0;
  for (int pass = 0; pass < 2; ++pass) {  // a byte of the identity of each scale factor at a time
    for (int n = 0; n < size<0>(layout); ++n) {
      for (int k = 0; k < kDepth; k += 32) {
        memory[layout(n, k, 0)] = uint8_t((n * (kDepth / 32) + k / 32 + 1) >> (8 * pass));
      }
    }
    for (int tile = 0; tile < (kColumns + TILE_N - 1) / TILE_N; ++tile) {
      for (int depth = 0; depth < kDepth / 128; ++depth) {
        std::memset(shared.data(), 0xEE, shared.size());
        auto sSFB = make_tensor(
            make_smem_ptr(reinterpret_cast<typename Mainloop::ElementSF*>(shared.data())),
            typename Mainloop::SmemLayoutSFB{});
        auto from = slice.partition_S(gSFB_nkl(_, _, tile / Mainloop::TilesOfBlockSFB, _, 0));
        auto to = slice.partition_D(sSFB);
        moved = 0;
        for (int i = 0; i < size<1>(to); ++i) {
          for (int j = 0; j < size<2>(to); ++j) {
            auto coordinate = from(_, i, j, depth).data().coord_;
            std::array<int, 5> start{0, 0, 0, 0, 0};
            for_each(make_int_sequence<decltype(rank(coordinate))::value>{},
                     [&](auto mode) { start[mode] = int(get<mode>(coordinate)); });
            if (planted == "inside") start[0] += tile * TILE_N % 128 / 32 * 2;
            misaligned += start[0] * 2 % 16 != 0;
            auto* target = reinterpret_cast<uint16_t*>(raw_pointer_cast(to(_, i, j, 0).data()));
            std::array<unsigned, 5> at{};
            unsigned count = 1;
            for (unsigned mode = 0; mode < descriptor.rank; ++mode) count *= descriptor.box[mode];
            for (unsigned element = 0; element < count; ++element) {
              unsigned rest = element;
              bool inside = true;
              uint64_t offset = 0;
              for (unsigned mode = 0; mode < descriptor.rank; ++mode) {
                at[mode] = rest % descriptor.box[mode];
                rest /= descriptor.box[mode];
                long const position = long(start[mode]) + at[mode];
                inside = inside && position >= 0 && position < long(dims[mode]);
                offset += uint64_t(position) * (mode == 0 ? 2 : strides[mode]);  // bytes
              }
              uint16_t value = 0;
              if (inside && offset + 2 > bytes) {
                if (planted != "inside") return std::printf("outside\n"), 1;
                inside = false;
              }
              if (inside) std::memcpy(&value, &memory[offset], 2);
              target[element] = value;
            }
            moved += 2 * count;
          }
        }
        auto seen = Mainloop::columns_SFB(sSFB, planted == "block" ? tile / Mainloop::TilesOfBlockSFB * Mainloop::TilesOfBlockSFB : tile);
        if (int(size<0>(seen)) != TILE_N) return std::printf("columns\n"), 1;
        for (int column = 0; column < TILE_N && tile * TILE_N + column < kColumns; ++column) {
          for (int k = 0; k < 128; k += 32) {
            auto const* byte = reinterpret_cast<uint8_t const*>(raw_pointer_cast(&seen(column, k, 0)));
            if (planted == "shift") byte += 16;
            int const id = (tile * TILE_N + column) * (kDepth / 32) + (depth * 128 + k) / 32 + 1;
            compared += 1;
            wrong += *byte != uint8_t(id >> (8 * pass));
          }
        }
      }
    }
  }
  unsigned const announced = cosize(take<0, 2>(typename Mainloop::SmemLayoutSFB{}));
  std::printf("%ld %ld %ld %d %u %u\n", compared, wrong, misaligned, int(Mainloop::DispatchPolicy::Stages), announced, moved);
}
