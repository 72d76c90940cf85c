// TVM-FFI exports of mxfp4_moe_decode(...) -> None, which writes out, and of the size of its scratch.
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <cstdint>

#include "binding.h"
#include "mxfp4_moe_decode.h"

namespace sparkforge {
namespace {

using MaybeTensor = tvm::ffi::Optional<TensorView>;

constexpr DLDataType kIdType{kDLInt, 32, 1};
constexpr DLDataType kWeightType{kDLFloat, 32, 1};
constexpr uintptr_t kVectorBytes = 16;    // of the kernel's loads
constexpr uintptr_t kScratchBytes = 128;  // alignment of scratch

int multiprocessors(int device) {
  int count = 0;
  check_cuda_status(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return count;
}

// Codes or scales, whatever type upstream gives their bytes.
void check_bytes(const TensorView& tensor, const char* name, int64_t experts, int64_t want, const char* why) {
  TVM_FFI_CHECK(tensor.ndim() >= 1 && tensor.IsContiguous(), ValueError)
      << name << " is not contiguous: shape " << text(tensor.shape()) << ", strides " << text(tensor.strides());
  TVM_FFI_CHECK(tensor.size(0) == experts && bytes(tensor) == want, ValueError)
      << name << " has shape " << text(tensor.shape()) << " and " << bytes(tensor) << " bytes, wanted " << want << " for "
      << experts << " experts (" << why << ")";
  check_aligned(tensor, name, kVectorBytes);
}

const uint16_t* optional_bf16(const MaybeTensor& maybe, const char* name, std::initializer_list<int64_t> shape, const char* why,
                              const TensorView& x) {
  if (!maybe.has_value()) return nullptr;
  const TensorView tensor = maybe.value();
  check_type(tensor, name, kBf16, static_cast<int>(shape.size()));
  check_shape(tensor, name, shape, why);
  check_same_device(tensor, name, x, "x");
  check_aligned(tensor, name, sizeof(uint16_t));
  return reinterpret_cast<const uint16_t*>(address(tensor));
}

void mxfp4_moe_decode(TensorView x, TensorView ids, TensorView weights, TensorView w13, TensorView s13, MaybeTensor b13,
                      TensorView w2, TensorView s2, MaybeTensor b2, MaybeTensor residual, TensorView scratch, TensorView out,
                      int64_t inter, int64_t layout_number, double alpha, double limit, bool overlap, int64_t shared_limit) {
  check_type(x, "x", kBf16, 2);
  check_type(ids, "topk_ids", kIdType, 2);
  check_type(weights, "topk_weights", kWeightType, 2);
  check_type(scratch, "scratch", kU8, 1);
  check_type(out, "out", kBf16, 2);
  const int64_t tokens = x.size(0);
  const int64_t hidden = x.size(1);
  const int64_t topk = ids.size(1);
  TVM_FFI_CHECK(tokens >= 1 && tokens <= kMaxMoeTokens, ValueError)
      << "x has " << tokens << " rows, this kernel takes 1 to " << kMaxMoeTokens;
  TVM_FFI_CHECK(topk >= 1 && topk <= kMaxMoePairs / kMaxMoeTokens, ValueError)
      << "topk_ids has " << topk << " columns, this kernel takes 1 to " << kMaxMoePairs / kMaxMoeTokens;
  TVM_FFI_CHECK(hidden >= 32 && hidden % 32 == 0, ValueError) << "x has " << hidden << " columns, wanted a multiple of 32";
  TVM_FFI_CHECK(inter >= 32 && inter % 32 == 0, ValueError) << "inter is " << inter << ", wanted a multiple of 32";
  TVM_FFI_CHECK(layout_number == 0 || layout_number == 1, ValueError) << "layout is " << layout_number << ", wanted 0 or 1";
  const auto layout = static_cast<MoeLayout>(layout_number);
  const bool marlin = layout == MoeLayout::kMarlin;
  TVM_FFI_CHECK(s13.ndim() == 3 && s2.ndim() == 3, ValueError)
      << "w13_scale has shape " << text(s13.shape()) << ", w2_scale " << text(s2.shape()) << ", wanted 3 dimensions each";
  const int64_t experts = s13.size(0);
  const int64_t hidden_stored = 32 * (marlin ? s13.size(1) : s13.size(2));
  const int64_t rows13 = marlin ? s13.size(2) : s13.size(1);
  const int64_t inter_stored = rows13 / 2;
  const int64_t multiple = marlin ? 64 : 128;
  TVM_FFI_CHECK(experts >= 1 && experts <= 65535, ValueError) << "w13_scale has " << experts << " experts, wanted 1 to 65535";
  TVM_FFI_CHECK(rows13 % 2 == 0 && hidden_stored % multiple == 0 && inter_stored % multiple == 0, ValueError)
      << "weights are stored for hidden " << hidden_stored << " and " << rows13 << " rows of gate and up, wanted multiples of "
      << multiple << " and " << 2 * multiple;
  TVM_FFI_CHECK(hidden <= hidden_stored && inter <= inter_stored, ValueError)
      << "hidden is " << hidden << " and inter " << inter << ", but weights are stored for " << hidden_stored << " and "
      << inter_stored;
  const char* per_weight = "half a byte a weight, a byte of scale for 32";
  check_bytes(w13, "w13", experts, experts * rows13 * hidden_stored / 2, per_weight);
  check_bytes(s13, "w13_scale", experts, experts * rows13 * hidden_stored / 32, per_weight);
  check_bytes(w2, "w2", experts, experts * hidden_stored * inter_stored / 2, per_weight);
  check_bytes(s2, "w2_scale", experts, experts * hidden_stored * inter_stored / 32, per_weight);
  check_shape(ids, "topk_ids", {tokens, topk}, "[M, k]");
  check_shape(weights, "topk_weights", {tokens, topk}, "[M, k]");
  check_shape(out, "out", {tokens, hidden}, "[M, hidden]");
  check_cuda(x, "x");
  check_aligned(x, "x", kVectorBytes);
  check_aligned(out, "out", sizeof(uint16_t));
  check_aligned(scratch, "scratch", kScratchBytes);
  const TensorView inputs[] = {ids, weights, w13, s13, w2, s2};
  const char* names[] = {"topk_ids", "topk_weights", "w13", "w13_scale", "w2", "w2_scale"};
  for (int i = 0; i < 6; ++i) {
    check_same_device(inputs[i], names[i], x, "x");
    check_apart(out, "out", inputs[i], names[i]);
    check_apart(scratch, "scratch", inputs[i], names[i]);
  }
  check_same_device(scratch, "scratch", x, "x");
  check_same_device(out, "out", x, "x");
  check_apart(out, "out", x, "x");
  check_apart(scratch, "scratch", x, "x");
  check_apart(out, "out", scratch, "scratch");
  Mxfp4MoeDecode call{};
  call.b13 = optional_bf16(b13, "w13_bias", {experts, rows13}, "[E, rows of w13]", x);
  call.b2 = optional_bf16(b2, "w2_bias", {experts, hidden_stored}, "[E, hidden as stored]", x);
  call.residual = optional_bf16(residual, "residual", {tokens, hidden}, "[M, hidden]", x);
  if (b13.has_value()) check_apart(out, "out", b13.value(), "w13_bias");
  if (b2.has_value()) check_apart(out, "out", b2.value(), "w2_bias");
  if (residual.has_value() && address(residual.value()) != address(out)) check_apart(out, "out", residual.value(), "residual");
  const DeviceScope current(x.device().device_id);
  const int64_t need =
      scratch_bytes(static_cast<int>(tokens), static_cast<int>(topk), static_cast<int>(inter), multiprocessors(x.device().device_id));
  TVM_FFI_CHECK(scratch.size(0) >= need, ValueError) << "scratch has " << scratch.size(0) << " bytes, wanted " << need;
  call.x = reinterpret_cast<const uint16_t*>(address(x));
  call.ids = reinterpret_cast<const int32_t*>(address(ids));
  call.weights = reinterpret_cast<const float*>(address(weights));
  call.w13 = reinterpret_cast<const uint8_t*>(address(w13));
  call.s13 = reinterpret_cast<const uint8_t*>(address(s13));
  call.w2 = reinterpret_cast<const uint8_t*>(address(w2));
  call.s2 = reinterpret_cast<const uint8_t*>(address(s2));
  call.y = reinterpret_cast<uint16_t*>(address(out));
  call.scratch = address(scratch);
  call.tokens = static_cast<int>(tokens);
  call.topk = static_cast<int>(topk);
  call.experts = static_cast<int>(experts);
  call.hidden = static_cast<int>(hidden);
  call.inter = static_cast<int>(inter);
  call.hidden_stored = static_cast<int>(hidden_stored);
  call.inter_stored = static_cast<int>(inter_stored);
  call.alpha = static_cast<float>(alpha);
  call.limit = static_cast<float>(limit);
  const cudaError_t status = launch(call, layout, x.device().device_id, shared_limit, overlap, stream_of(x));
  TVM_FFI_CHECK(status != cudaErrorInvalidConfiguration, ValueError)
      << "x has " << tokens << " rows of " << hidden << ", which does not fit into the shared memory of a block of this device";
  check_cuda_status(status, "mxfp4_moe_decode");
}

int64_t mxfp4_moe_scratch(int64_t tokens, int64_t topk, int64_t inter, int64_t device) {
  return scratch_bytes(static_cast<int>(tokens), static_cast<int>(topk), static_cast<int>(inter),
                       multiprocessors(static_cast<int>(device)));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(mxfp4_moe_decode, mxfp4_moe_decode);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(mxfp4_moe_scratch, mxfp4_moe_scratch);

}  // namespace
}  // namespace sparkforge
