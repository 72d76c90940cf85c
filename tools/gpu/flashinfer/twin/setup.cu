// FlashInfer's set-up of a grouped GEMM: the arrays of pointers, strides and scale layouts are written by its own kernel.
#include "fused_moe/cutlass_backend/cutlass_fused_moe_kernels.cuh"

#include "cases.h"
#include "check.h"

namespace {

namespace moe = tensorrt_llm::kernels::cutlass_kernels;
constexpr auto kScaling = Input::FpXBlockScalingType::MXFPX;

}  // namespace

int64_t activation_scales_at(int64_t expert, int64_t first_row, int64_t k) {
  return moe::getOffsetActivationSF(expert, first_row, k, kScaling);
}

void set_up(Input& input, Problem const& problem, Arena& arena, uint8_t fill) {
  bool const finalize = input.fusion == Input::EpilogueFusion::FINALIZE;
  size_t const bytes = Input::workspaceSize(problem.experts, kScaling);
  // One of the two GEMMs of a layer is the one that is asked for; the other one has arrays of its own.
  Input other = input;
  other.fusion = finalize ? Input::EpilogueFusion::NONE : Input::EpilogueFusion::FINALIZE;
  for (Input* each : {&input, &other}) {
    auto* memory = arena.take<int8_t>(bytes);
    CHECK(cudaMemset(memory, fill, bytes));
    auto const keep = each->fused_finalize_epilogue;
    each->configureWorkspace(memory, problem.experts, nullptr, 0, kScaling);
    auto const arrays = each->fused_finalize_epilogue;
    each->fused_finalize_epilogue = keep;
    each->fused_finalize_epilogue.ptr_bias = problem.bias ? arrays.ptr_bias : nullptr;
    each->fused_finalize_epilogue.ptr_router_scales = arrays.ptr_router_scales;
    each->fused_finalize_epilogue.ptr_source_token_index = arrays.ptr_source_token_index;
    each->ptr_c = nullptr;
    each->stride_c = nullptr;
    each->fpX_block_scaling_type = kScaling;
    if (!problem.alpha) each->alpha_scale_ptr_array = nullptr;
  }
  moe::QuantParams scales;
  scales.mxfp8_mxfp4.fc1.weight_block_scale = problem.weight_scales;
  scales.mxfp8_mxfp4.fc2.weight_block_scale = problem.weight_scales;
  auto const* in = reinterpret_cast<__nv_fp8_e4m3 const*>(problem.activations);
  auto const* weights = reinterpret_cast<__nv_fp4_e2m1 const*>(problem.weights);
  auto const* bias = static_cast<__nv_bfloat16 const*>(problem.bias);
  auto* output = static_cast<__nv_bfloat16*>(problem.output);
  moe::computeStridesTmaWarpSpecializedKernel<__nv_fp8_e4m3, __nv_fp4_e2m1, __nv_bfloat16, __nv_bfloat16>
      <<<(problem.experts + 31) / 32, 32>>>(
          problem.first_row, finalize ? other : input, finalize ? input : other, 0, 0, problem.n, problem.k, problem.n,
          problem.k, problem.experts, in, in, weights, weights, problem.alpha, problem.alpha,
          problem.activation_scales, problem.activation_scales, scales, bias, bias, output, output,
          problem.router_scales, problem.source);
  CHECK(cudaGetLastError());
}
