// One instance of the grouped GEMM, as FlashInfer's generator writes it, and its entry in the driver's table.
// -DTILE_N=32|64|128 -DSWAP_AB=true|false -DFUSION=NONE|FINALIZE
#include "tensorrt_llm/kernels/cutlass_kernels/moe_gemm/launchers/moe_gemm_tma_ws_launcher.inl"

#include "cases.h"

namespace tensorrt_llm::kernels::cutlass_kernels_oss {

INSTANTIATE_TMA_WARP_SPECIALIZED_MOE_GEMM(Sm120, SafeFP8, SafeFP4, SafeBF16, void, EpilogueOpDefault, FUSION, 128,
                                          TILE_N, 128, 1, 1, 1, true, false, false, SWAP_AB);

}  // namespace tensorrt_llm::kernels::cutlass_kernels_oss

namespace {

namespace oss = tensorrt_llm::kernels::cutlass_kernels_oss;
using Fusion = oss::EpilogueFusion;

constexpr auto* kLaunch = &oss::tma_warp_specialized_generic_moe_gemm_kernelLauncher<
    cutlass::arch::Sm120, oss::SafeFP8, oss::SafeFP4, oss::SafeBF16, void,
    tensorrt_llm::cutlass_extensions::EpilogueOpDefault, Fusion::FUSION,
    cute::Shape<cute::_128, cute::Int<TILE_N>, cute::_128>, cute::Shape<cute::_1, cute::_1, cute::_1>, true, false,
    false, SWAP_AB>;

void launch(Input const& input, int experts, int multiprocessors, size_t* workspace_size) {
  kLaunch(input, experts, multiprocessors, nullptr, nullptr, workspace_size, {}, {});
}

bool const known = (variants().push_back({TILE_N, SWAP_AB, Fusion::FUSION == Fusion::FINALIZE, launch}), true);

}  // namespace
