// Every tactic that the MoE runner offers on SM12x, sent through its own dispatch, on the host.
//
// The tactic list and the dispatch are FlashInfer's. Only the launch at the end of the dispatch is
// replaced: it records for which kernel it was asked. Prints a line for each tactic:
//   <types> <gemm> <id> <tile> swap_ab=<0|1> finalize=<0|1> <the kernel's tile, or "refused">
#include <cstdio>
#include <string>

#include "tensorrt_llm/kernels/cutlass_kernels/moe_gemm/moe_gemm_template_dispatch_tma_ws.h"

// What inline functions of the headers refer to, and nothing here calls.
extern "C" {
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetDevice(int*) { return cudaSuccess; }
char const* cudaGetErrorString(cudaError_t) { return ""; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaMemcpy(void*, void const*, size_t, cudaMemcpyKind) { return cudaSuccess; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes*, void const*) { return cudaSuccess; }
}

namespace tensorrt_llm::kernels::cutlass_kernels_oss {

static std::string launched;

template <typename Arch, typename T, typename WeightType, typename OutputType,
          typename EpilogueSchedule, typename EpilogueTag,
          TmaWarpSpecializedGroupedGemmInput::EpilogueFusion FUSION, typename TileShape,
          typename ClusterShape, bool IsMXFPX, bool DYNAMIC_CGA, bool BIAS, bool SwapAB>
void tma_warp_specialized_generic_moe_gemm_kernelLauncher(
    TmaWarpSpecializedGroupedGemmInput, int, int, cudaStream_t, int*, size_t* workspace_size,
    cute::Shape<int32_t, int32_t, cute::_1>, cute::Shape<int32_t, int32_t, cute::_1>) {
  launched = std::to_string(int(cute::get<0>(TileShape{}))) + "x" +
             std::to_string(int(cute::get<1>(TileShape{}))) + "x" +
             std::to_string(int(cute::get<2>(TileShape{}))) +
             (SwapAB ? " swap_ab" : "") +
             (FUSION == TmaWarpSpecializedGroupedGemmInput::EpilogueFusion::FINALIZE ? " finalize"
                                                                                     : "");
  *workspace_size = 1;
}

}  // namespace tensorrt_llm::kernels::cutlass_kernels_oss

namespace tensorrt_llm::kernels::cutlass_kernels {
#include "tactic_list.inc"  // the definition of MoeGemmRunner::getTmaWarpSpecializedConfigs
}

using Input = tensorrt_llm::kernels::cutlass_kernels::TmaWarpSpecializedGroupedGemmInput;
using Config = tensorrt_llm::cutlass_extensions::CutlassGemmConfig;

template <typename T, typename WeightType, bool IsMXFPX>
void enumerate(char const* types, int sm) {
  namespace tk = tensorrt_llm::kernels;
  using Runner = tk::cutlass_kernels::MoeGemmRunner<T, WeightType, __nv_bfloat16, __nv_bfloat16, IsMXFPX>;
  for (int gemm = 1; gemm <= 2; ++gemm) {
    int id = 0;
    for (Config const& config : Runner::getTmaWarpSpecializedConfigs(sm, gemm == 2)) {
      Input input{};
      input.fpX_block_scaling_type =
          IsMXFPX ? Input::FpXBlockScalingType::MXFPX : Input::FpXBlockScalingType::NVFP4;
      input.swap_ab = config.swap_ab;
      bool const finalize = config.epilogue_fusion_type == Config::EpilogueFusionType::FINALIZE;
      size_t workspace = 0;
      tk::cutlass_kernels_oss::launched.clear();
      std::string result = "refused";
      try {
        using Tag = tensorrt_llm::cutlass_extensions::EpilogueOpDefault;
        auto dispatch =
            finalize ? &tk::cutlass_kernels_oss::dispatchMoeGemmSelectTileShapeTmaWarpSpecialized<
                           T, WeightType, __nv_bfloat16, Tag, Input::EpilogueFusion::FINALIZE>
                     : &tk::cutlass_kernels_oss::dispatchMoeGemmSelectTileShapeTmaWarpSpecialized<
                           T, WeightType, __nv_bfloat16, Tag, Input::EpilogueFusion::NONE>;
        dispatch(input, 128, config, 48, cudaStream_t{}, nullptr, &workspace);
        if (!tk::cutlass_kernels_oss::launched.empty()) {
          result = tk::cutlass_kernels_oss::launched;
        }
      } catch (tensorrt_llm::common::TllmException const&) {
      }
      std::printf("%s %d %d %s swap_ab=%d finalize=%d %s\n", types, gemm, id++,
                  config.getTileConfigAsName().c_str(), int(config.swap_ab), int(finalize),
                  result.c_str());
    }
  }
}

int main() {
  for (int sm : {120, 121}) {
    enumerate<__nv_fp8_e4m3, __nv_fp4_e2m1, true>(sm == 120 ? "fp8xfp4/120" : "fp8xfp4/121", sm);
    enumerate<__nv_fp4_e2m1, __nv_fp4_e2m1, false>(sm == 120 ? "fp4xfp4/120" : "fp4xfp4/121", sm);
  }
}
