// The kernel that copies each token's row to its experts, as a library of C functions over raw device pointers:
// check_expand.py compiles and calls it. The functions run the launcher that the MoE runner calls.
#include "cutlass_fused_moe_kernels.cuh"

namespace kernels = tensorrt_llm::kernels::cutlass_kernels;
using Input = tensorrt_llm::kernels::cutlass_kernels::TmaWarpSpecializedGroupedGemmInput;

namespace {

template <class In, class Out>
int expand(void const* in, void* out, float const* scales, float* permuted_scales, int const* source, int64_t rows,
           int64_t hidden, int top_k, int experts, int64_t* first_token, void* sf, void const* input_sf,
           bool swizzled_input_sf, void* stream) {
  static uint8_t const block_scales[1] = {};  // says that the scales are MX; the kernel reads none of it
  kernels::QuantParams quant{};
  if (sf != nullptr) {
    quant.mxfp8_mxfp4.fc1.weight_block_scale = reinterpret_cast<Input::ElementSF const*>(block_scales);
  }
  kernels::expandInputRowsKernelLauncher<In, Out>(
      static_cast<In const*>(in), static_cast<Out*>(out), scales, permuted_scales, source, rows, hidden, top_k, experts,
      quant, false, first_token, static_cast<Input::ElementSF*>(sf), static_cast<Input::ElementSF const*>(input_sf),
      swizzled_input_sf, nullptr, false, static_cast<cudaStream_t>(stream));
  return static_cast<int>(cudaGetLastError());
}

}  // namespace

#define EXPORT(name, In, Out)                                                                                       \
  extern "C" int name(void const* in, void* out, float const* scales, float* permuted_scales, int const* source,    \
                      int64_t rows, int64_t hidden, int top_k, int experts, int64_t* first_token, void* sf,         \
                      void const* input_sf, int swizzled_input_sf, void* stream) {                                  \
    return expand<In, Out>(in, out, scales, permuted_scales, source, rows, hidden, top_k, experts, first_token, sf, \
                           input_sf, swizzled_input_sf != 0, stream);                                               \
  }

EXPORT(expand_bf16, __nv_bfloat16, __nv_bfloat16)        // copied as they are
EXPORT(expand_quantized, __nv_fp8_e4m3, __nv_fp8_e4m3)   // copied with the scale factors that came with them
EXPORT(expand_bf16_to_mxfp8, __nv_bfloat16, __nv_fp8_e4m3)
EXPORT(expand_half_to_mxfp8, half, __nv_fp8_e4m3)
