// Where the members of a grouped BF16 GEMM's parameter stand, as FlashInfer's MoE instantiates it for sm_90; no GPU needed.
//
//   nvcc -std=c++17 -arch=sm_90a --expt-relaxed-constexpr -I DATA/cutlass/include -I DATA/cutlass/tools/util/include \
//     -Xlinker --unresolved-symbols=ignore-all -o params cutlass_params.cu && ./params     DATA: flashinfer/data
//
// What lies between the end of one member and the start of the next is padding, since what holds TMA descriptors is aligned
// as they are. Of 1,792 bytes, 1,452 to 1,535 are the epilogue's padding and 688 to 767 the mainloop's.

#include "cutlass/cutlass.h"

#include "cute/tensor.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/group_array_problem_shape.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"

#include <cstddef>
#include <cstdio>

using namespace cute;
using cutlass::arch::OpClassTensorOp;
using cutlass::arch::Sm90;
using Element = cutlass::bfloat16_t;

template <int N, class LayoutD>
struct Grouped {
  using Tile = Shape<_128, Int<N>, _64>;
  using Cluster = Shape<_1, _1, _1>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      Sm90, OpClassTensorOp, Tile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, LayoutD*, 8,
      Element, LayoutD*, 8, cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative>::CollectiveOp;
  using Stages =
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      Sm90, OpClassTensorOp, Element, cutlass::layout::RowMajor*, 8, Element, cutlass::layout::ColumnMajor*, 8, float, Tile,
      Cluster, Stages, cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative>::CollectiveOp;
  using Problem = cutlass::gemm::GroupProblemShape<Shape<int64_t, int64_t, int64_t>>;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<Problem, Mainloop, Epilogue, void, void>;
};

#define SAY(type, base, member, size) \
  std::printf("  %-34s %5zu to %5zu\n", #member, (base) + offsetof(type, member), (base) + offsetof(type, member) + (size) - 1)

template <class Kernel>
void say(char const* name) {
  using All = typename Kernel::Params;
  using Main = typename Kernel::CollectiveMainloop::Params;
  using Epi = typename Kernel::CollectiveEpilogue::Params;
  All const* all = nullptr;
  Main const* main_ = nullptr;
  Epi const* epi = nullptr;
  std::size_t const m = offsetof(All, mainloop), e = offsetof(All, epilogue);
  std::printf("%s: %zu bytes\n", name, sizeof(All));
  SAY(All, 0, problem_shape, sizeof(all->problem_shape));
  SAY(All, 0, mainloop, sizeof(all->mainloop));
  SAY(Main, m, tma_load_a, sizeof(main_->tma_load_a));
  SAY(Main, m, tma_load_b, sizeof(main_->tma_load_b));
  SAY(Main, m, tma_transaction_bytes, sizeof(main_->tma_transaction_bytes));
  SAY(Main, m, dB, sizeof(main_->dB));
  SAY(All, 0, epilogue, sizeof(all->epilogue));
  SAY(Epi, e, thread, sizeof(epi->thread));
  SAY(Epi, e, tma_load_c, sizeof(epi->tma_load_c));
  SAY(Epi, e, tma_store_d, sizeof(epi->tma_store_d));
  SAY(Epi, e, dD, sizeof(epi->dD));
  SAY(Epi, e, tma_transaction_bytes, sizeof(epi->tma_transaction_bytes));
  SAY(All, 0, hw_info, sizeof(all->hw_info));
  SAY(All, 0, scheduler, sizeof(all->scheduler));
  SAY(All, 0, workspace, sizeof(all->workspace));
}

int main() {
  say<typename Grouped<16, cutlass::layout::ColumnMajor>::Kernel>("128x16x64, A and B exchanged");
  say<typename Grouped<128, cutlass::layout::RowMajor>::Kernel>("128x128x64");
}
