// TVM-FFI export of mxfp4_linear_decode(x, weight, scale, bias | None, y) -> None; y is written.
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <cstdint>
#include <limits>

#include "binding.h"
#include "mxfp4_linear_decode.h"

namespace sparkforge {
namespace {

constexpr int64_t kScaleBlock = 32;
constexpr uintptr_t kVector = 16;  // bytes of the kernel's loads

void mxfp4_linear_decode(TensorView x, TensorView weight, TensorView scale, tvm::ffi::Optional<TensorView> bias,
                         TensorView y) {
  check_type(x, "x", kBf16, 2);
  check_type(weight, "w", kU8, 2);
  check_type(scale, "w_scale", kU8, 2);
  check_type(y, "out", kBf16, 2);
  const int64_t tokens = x.size(0);
  const int64_t k = x.size(1);
  const int64_t n = weight.size(0);
  TVM_FFI_CHECK(tokens >= 1 && tokens <= kMaxDecodeTokens, ValueError)
      << "x has " << tokens << " rows, this kernel takes 1 to " << kMaxDecodeTokens;
  TVM_FFI_CHECK(k >= kScaleBlock && k % kScaleBlock == 0, ValueError)
      << "x has K = " << k << ", wanted a multiple of " << kScaleBlock;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  TVM_FFI_CHECK(n >= 1 && n <= kMost && k <= kMost, ValueError) << "w has N = " << n << ", K = " << k << ", wanted 1 to " << kMost;
  check_shape(weight, "w", {n, k / 2}, "[N, K/2], two codes a byte");
  check_shape(scale, "w_scale", {n, k / kScaleBlock}, "[N, K/32], a scale a block");
  check_shape(y, "out", {tokens, n}, "[M, N]");
  check_cuda(x, "x");
  check_same_device(weight, "w", x, "x");
  check_same_device(scale, "w_scale", x, "x");
  check_same_device(y, "out", x, "x");
  check_aligned(x, "x", kVector);
  check_aligned(weight, "w", kVector);
  check_aligned(y, "out", sizeof(uint16_t));
  check_apart(y, "out", x, "x");
  check_apart(y, "out", weight, "w");
  check_apart(y, "out", scale, "w_scale");
  const uint16_t* bias_data = nullptr;
  if (bias.has_value()) {
    const TensorView given = bias.value();
    check_type(given, "bias", kBf16, 1);
    check_shape(given, "bias", {n}, "[N]");
    check_same_device(given, "bias", x, "x");
    check_aligned(given, "bias", sizeof(uint16_t));
    check_apart(y, "out", given, "bias");
    bias_data = reinterpret_cast<const uint16_t*>(address(given));
  }
  const DeviceScope current(x.device().device_id);
  const Mxfp4LinearDecode call{address(x),
                               address(weight),
                               reinterpret_cast<const uint8_t*>(address(scale)),
                               bias_data,
                               reinterpret_cast<uint16_t*>(address(y)),
                               static_cast<int>(tokens),
                               n,
                               k};
  check_cuda_status(launch(call, stream_of(x)), "mxfp4_linear_decode");
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(mxfp4_linear_decode, mxfp4_linear_decode);

}  // namespace
}  // namespace sparkforge
