// Checks of the arguments that the dense kernels share, each with a sentence for the caller.
#pragma once

#include <tvm/ffi/optional.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "binding.h"
#include "mxfp4_linear_decode.h"

namespace sparkforge {

using Maybe = tvm::ffi::Optional<TensorView>;

constexpr int64_t kScaleBlock = 32;
constexpr int64_t kMarlinRows = 64;
constexpr uintptr_t kVector = 16;  // bytes of the kernels' loads
constexpr DLDataType kI32{kDLInt, 32, 1};

inline void check_tokens(const TensorView& x, int64_t most) {
  TVM_FFI_CHECK(x.size(0) >= 1 && x.size(0) <= most, ValueError)
      << "x has " << x.size(0) << " rows, this kernel takes 1 to " << most;
}

// All but the outputs and the number of tokens. n: rows of the result.
inline Mxfp4LinearDecode dense_arguments(const TensorView& x, const TensorView& weight, const Maybe& scale, const Maybe& bias,
                                         int64_t n, int layout) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  TVM_FFI_CHECK(layout >= int(Layout::kRows) && layout <= int(Layout::kPacked), ValueError)
      << "layout is " << layout << ", wanted 0 (rows), 1 (Marlin) or 2 (packed)";
  const auto kind = static_cast<Layout>(layout);
  check_type(x, "x", kBf16, 2);
  const int64_t k = x.size(1);
  TVM_FFI_CHECK(k >= kScaleBlock && k % kScaleBlock == 0, ValueError)
      << "x has K = " << k << ", wanted a multiple of " << kScaleBlock;
  TVM_FFI_CHECK(n >= 1 && n <= kMost && k <= kMost, ValueError) << "w has N = " << n << ", K = " << k << ", wanted 1 to " << kMost;
  check_cuda(x, "x");
  check_aligned(x, "x", kVector);
  int64_t stored = n;
  if (kind == Layout::kRows) {
    check_type(weight, "w", kU8, 2);
    check_shape(weight, "w", {n, k / 2}, "[N, K/2], two codes a byte");
  } else if (kind == Layout::kMarlin) {
    check_type(weight, "w", kI32, 2);
    stored = weight.size(1) / 2;
    check_shape(weight, "w", {k / 16, 2 * stored}, "[K/16, 2 N], Marlin's tiles");
    TVM_FFI_CHECK(stored % kMarlinRows == 0 && stored >= n && stored - n < 4 * kMarlinRows, ValueError)
        << "w holds " << stored << " rows, wanted " << n << " padded to a multiple of " << kMarlinRows;
  } else {
    check_type(weight, "w", kU8, 3);
    check_shape(weight, "w", {(n + 15) / 16, (k + 63) / 64, 544}, "[N/16, K/64, 544], units of 16 rows by 64 k");
  }
  check_same_device(weight, "w", x, "x");
  check_aligned(weight, "w", kVector);
  Mxfp4LinearDecode call{};
  TVM_FFI_CHECK(scale.has_value() != (kind == Layout::kPacked), ValueError)
      << "w_scale is " << (scale.has_value() ? "given, but a packed w holds its scales" : "None, which only a packed w may have");
  if (scale.has_value()) {
    const TensorView given = scale.value();
    check_type(given, "w_scale", kU8, 2);
    if (kind == Layout::kRows)
      check_shape(given, "w_scale", {n, k / kScaleBlock}, "[N, K/32], a scale a block");
    else
      check_shape(given, "w_scale", {k / kScaleBlock, stored}, "[K/32, N], Marlin's order");
    check_same_device(given, "w_scale", x, "x");
    if (kind == Layout::kMarlin) check_aligned(given, "w_scale", kVector);
    call.scale = reinterpret_cast<const uint8_t*>(address(given));
  }
  if (bias.has_value()) {
    const TensorView given = bias.value();
    check_type(given, "bias", kBf16, 1);
    check_shape(given, "bias", {stored}, kind == Layout::kMarlin ? "[N padded], Marlin's order" : "[N]");
    check_same_device(given, "bias", x, "x");
    check_aligned(given, "bias", sizeof(uint16_t));
    call.bias = reinterpret_cast<const uint16_t*>(address(given));
  }
  call.layout = kind;
  call.x = address(x);
  call.weight = address(weight);
  call.n = n;
  call.stored_n = stored;
  call.k = k;
  return call;
}

}  // namespace sparkforge
