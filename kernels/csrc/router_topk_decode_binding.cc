// TVM-FFI exports of router_topk_decode(...) -> None, which writes ids, weights and the normed x, and of the size of its
// scratch.
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <cstdint>

#include "binding.h"
#include "router_topk_decode.h"

namespace sparkforge {
namespace {

using MaybeTensor = tvm::ffi::Optional<TensorView>;

constexpr DLDataType kIdType{kDLInt, 32, 1};
constexpr DLDataType kWeightType{kDLFloat, 32, 1};
constexpr uintptr_t kVectorBytes = 16;
constexpr uintptr_t kScratchBytes = 128;

void router_topk_decode(TensorView x, MaybeTensor gamma, TensorView weight, MaybeTensor bias, MaybeTensor normed,
                        TensorView ids, TensorView weights, TensorView scratch, double epsilon, bool overlap) {
  check_type(x, "x", kBf16, 2);
  check_type(weight, "w", kBf16, 2);
  check_type(ids, "ids", kIdType, 2);
  check_type(weights, "weights", kWeightType, 2);
  check_type(scratch, "scratch", kU8, 1);
  const int64_t tokens = x.size(0);
  const int64_t hidden = x.size(1);
  const int64_t experts = weight.size(0);
  const int64_t topk = ids.size(1);
  TVM_FFI_CHECK(tokens >= 1 && tokens <= kMaxRouterTokens, ValueError)
      << "x has " << tokens << " rows, this kernel takes 1 to " << kMaxRouterTokens;
  TVM_FFI_CHECK(hidden >= 8 && hidden % 8 == 0 && hidden <= kMaxRouterHidden, ValueError)
      << "x has " << hidden << " columns, wanted a multiple of 8 up to " << kMaxRouterHidden;
  TVM_FFI_CHECK(experts >= 1 && experts <= kMaxRouterExperts, ValueError)
      << "w has " << experts << " rows, this kernel takes 1 to " << kMaxRouterExperts;
  TVM_FFI_CHECK(topk >= 1 && topk <= kMaxRouterTopk && topk <= experts, ValueError)
      << "ids has " << topk << " columns, this kernel takes 1 to " << kMaxRouterTopk << ", and no more than experts";
  check_shape(weight, "w", {experts, hidden}, "[E, hidden]");
  check_shape(ids, "ids", {tokens, topk}, "[M, k]");
  check_shape(weights, "weights", {tokens, topk}, "[M, k]");
  check_cuda(x, "x");
  const TensorView all[] = {weight, ids, weights, scratch};
  const char* names[] = {"w", "ids", "weights", "scratch"};
  for (int i = 0; i < 4; ++i) {
    check_same_device(all[i], names[i], x, "x");
    if (i > 0) check_apart(all[i], names[i], x, "x");
    for (int j = 0; j < i; ++j) check_apart(all[i], names[i], all[j], names[j]);
  }
  check_aligned(x, "x", kVectorBytes);
  check_aligned(weight, "w", kVectorBytes);
  check_aligned(scratch, "scratch", kScratchBytes);
  const int64_t need = router_scratch_bytes(static_cast<int>(tokens), static_cast<int>(experts));
  TVM_FFI_CHECK(scratch.size(0) >= need, ValueError) << "scratch has " << scratch.size(0) << " bytes, wanted " << need;
  TVM_FFI_CHECK(gamma.has_value() == normed.has_value(), ValueError)
      << "normed must be given exactly where norm_weight is: it is x after the norm";
  RouterTopkDecode call{};
  if (gamma.has_value()) {
    check_type(gamma.value(), "norm_weight", kBf16, 1);
    check_shape(gamma.value(), "norm_weight", {hidden}, "[hidden]");
    check_same_device(gamma.value(), "norm_weight", x, "x");
    check_aligned(gamma.value(), "norm_weight", kVectorBytes);
    check_type(normed.value(), "normed", kBf16, 2);
    check_shape(normed.value(), "normed", {tokens, hidden}, "[M, hidden]");
    check_same_device(normed.value(), "normed", x, "x");
    check_aligned(normed.value(), "normed", kVectorBytes);
    check_apart(normed.value(), "normed", x, "x");
    check_apart(normed.value(), "normed", gamma.value(), "norm_weight");
    for (int i = 0; i < 4; ++i) check_apart(normed.value(), "normed", all[i], names[i]);
    call.gamma = reinterpret_cast<const uint16_t*>(address(gamma.value()));
    call.normed = reinterpret_cast<uint16_t*>(address(normed.value()));
  }
  if (bias.has_value()) {
    check_type(bias.value(), "bias", kBf16, 1);
    check_shape(bias.value(), "bias", {experts}, "[E]");
    check_same_device(bias.value(), "bias", x, "x");
    call.bias = reinterpret_cast<const uint16_t*>(address(bias.value()));
  }
  call.x = reinterpret_cast<const uint16_t*>(address(x));
  call.weight = reinterpret_cast<const uint16_t*>(address(weight));
  call.ids = reinterpret_cast<int32_t*>(address(ids));
  call.weights = reinterpret_cast<float*>(address(weights));
  call.scratch = address(scratch);
  call.tokens = static_cast<int>(tokens);
  call.hidden = static_cast<int>(hidden);
  call.experts = static_cast<int>(experts);
  call.topk = static_cast<int>(topk);
  call.epsilon = static_cast<float>(epsilon);
  const DeviceScope current(x.device().device_id);
  check_cuda_status(launch(call, overlap, stream_of(x)), "router_topk_decode");
}

int64_t router_topk_scratch(int64_t tokens, int64_t experts) {
  return router_scratch_bytes(static_cast<int>(tokens), static_cast<int>(experts));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(router_topk_decode, router_topk_decode);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(router_topk_scratch, router_topk_scratch);

}  // namespace
}  // namespace sparkforge
