// TVM-FFI exports of lm_head_topk_decode(x, w, bias | None, values, ids, log_sum, scratch, logits | None, overlap) -> None
// and of the size of its scratch.
#include <tvm/ffi/function.h>

#include "dense_arguments.h"
#include "lm_head_topk_decode.h"

namespace sparkforge {
namespace {

constexpr DLDataType kF32{kDLFloat, 32, 1};

void lm_head_topk_decode(TensorView x, TensorView weight, Maybe bias, TensorView values, TensorView ids, TensorView log_sum,
                         TensorView scratch, Maybe logits, int64_t n, bool overlap) {
  LmHeadTopk call{};
  call.dense = dense_arguments(x, weight, Maybe(), bias, n, int(Layout::kPacked));
  check_tokens(x, kMaxDecodeTokens);
  const int64_t tokens = x.size(0);
  check_type(values, "values", kF32, 2);
  check_type(ids, "ids", kI32, 2);
  check_type(log_sum, "log_sum", kF32, 1);
  check_type(scratch, "scratch", kU8, 1);
  const int64_t top = values.size(1);
  TVM_FFI_CHECK(top >= 1 && top <= kMostTop && top <= n, ValueError)
      << "values has " << top << " columns, this kernel takes 1 to " << std::min<int64_t>(kMostTop, n);
  check_shape(values, "values", {tokens, top}, "[M, k]");
  check_shape(ids, "ids", {tokens, top}, "[M, k]");
  check_shape(log_sum, "log_sum", {tokens}, "[M]");
  TVM_FFI_CHECK(scratch.size(0) >= topk_scratch(tokens, top), ValueError)
      << "scratch has " << scratch.size(0) << " bytes, wanted " << topk_scratch(tokens, top);
  check_aligned(scratch, "scratch", kVector);
  const TensorView written[] = {values, ids, log_sum, scratch};
  const char* names[] = {"values", "ids", "log_sum", "scratch"};
  for (int i = 0; i < 4; ++i) {
    check_same_device(written[i], names[i], x, "x");
    check_apart(written[i], names[i], x, "x");
    check_apart(written[i], names[i], weight, "w");
    for (int j = 0; j < i; ++j) check_apart(written[i], names[i], written[j], names[j]);
  }
  if (logits.has_value()) {
    const TensorView given = logits.value();
    check_type(given, "logits", kBf16, 2);
    check_shape(given, "logits", {tokens, n}, "[M, N]");
    check_same_device(given, "logits", x, "x");
    check_apart(given, "logits", x, "x");
    check_apart(given, "logits", weight, "w");
    for (int i = 0; i < 4; ++i) check_apart(given, "logits", written[i], names[i]);
    call.dense.y = reinterpret_cast<uint16_t*>(address(given));
  }
  call.dense.tokens = static_cast<int>(tokens);
  call.dense.overlap = overlap;
  call.top = static_cast<int>(top);
  call.values = reinterpret_cast<float*>(address(values));
  call.ids = reinterpret_cast<int32_t*>(address(ids));
  call.log_sum = reinterpret_cast<float*>(address(log_sum));
  call.scratch = address(scratch);
  const DeviceScope current(x.device().device_id);
  check_cuda_status(launch(call, stream_of(x)), "lm_head_topk_decode");
}

int64_t lm_head_topk_scratch(int64_t tokens, int64_t top) { return topk_scratch(tokens, top); }

TVM_FFI_DLL_EXPORT_TYPED_FUNC(lm_head_topk_decode, lm_head_topk_decode);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(lm_head_topk_scratch, lm_head_topk_scratch);

}  // namespace
}  // namespace sparkforge
