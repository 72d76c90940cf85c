// TVM-FFI export of mxfp4_linear_decode(x, w, w_scale | None, bias | None, out, layout, overlap) -> None; out is written.
#include <tvm/ffi/function.h>

#include "dense_arguments.h"

namespace sparkforge {
namespace {

void mxfp4_linear_decode(TensorView x, TensorView weight, Maybe scale, Maybe bias, TensorView y, int layout, bool overlap) {
  check_type(y, "out", kBf16, 2);
  // Rows say how many they are; the other layouts are padded.
  const bool rows = layout == int(Layout::kRows) && weight.ndim() == 2;
  Mxfp4LinearDecode call = dense_arguments(x, weight, scale, bias, rows ? weight.size(0) : y.size(1), layout);
  check_tokens(x, layout == int(Layout::kPacked) ? std::numeric_limits<int32_t>::max() : kMaxDecodeTokens);
  check_shape(y, "out", {x.size(0), call.n}, "[M, N]");
  check_same_device(y, "out", x, "x");
  check_aligned(y, "out", sizeof(uint16_t));
  check_apart(y, "out", x, "x");
  check_apart(y, "out", weight, "w");
  if (scale.has_value()) check_apart(y, "out", scale.value(), "w_scale");
  if (bias.has_value()) check_apart(y, "out", bias.value(), "bias");
  call.overlap = overlap;
  const DeviceScope current(x.device().device_id);
  // More tokens than eight go in strips, each of which reads the weights.
  for (int64_t first = 0; first < x.size(0); first += kMaxDecodeTokens) {
    call.x = address(x) + first * call.k * sizeof(uint16_t);
    call.y = reinterpret_cast<uint16_t*>(address(y)) + first * call.n;
    call.tokens = static_cast<int>(std::min<int64_t>(kMaxDecodeTokens, x.size(0) - first));
    check_cuda_status(launch(call, stream_of(x)), "mxfp4_linear_decode");
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(mxfp4_linear_decode, mxfp4_linear_decode);

}  // namespace
}  // namespace sparkforge
