// Checks that every binding makes before it hands pointers to a kernel, each with a sentence for the caller.
#pragma once

#include <cuda_runtime_api.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <cstdint>
#include <initializer_list>
#include <string>

namespace sparkforge {

using tvm::ffi::TensorView;

constexpr DLDataType kBf16{kDLBfloat, 16, 1};
constexpr DLDataType kU8{kDLUInt, 8, 1};

inline std::string text(DLDataType type) {
  const char* word = type.code == kDLFloat    ? "float"
                     : type.code == kDLBfloat ? "bfloat"
                     : type.code == kDLUInt   ? "uint"
                     : type.code == kDLInt    ? "int"
                                              : "type";
  return word + std::to_string(type.bits) + (type.lanes == 1 ? "" : "x" + std::to_string(type.lanes));
}

inline std::string text(tvm::ffi::ShapeView shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

inline char* address(const TensorView& tensor) { return static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset(); }

inline int64_t bytes(const TensorView& tensor) { return tensor.numel() * ((tensor.dtype().bits + 7) / 8); }

inline void check_type(const TensorView& tensor, const char* name, DLDataType want, int rank) {
  const DLDataType is = tensor.dtype();
  TVM_FFI_CHECK(is.code == want.code && is.bits == want.bits && is.lanes == want.lanes, TypeError)
      << name << " is " << text(is) << ", wanted " << text(want);
  TVM_FFI_CHECK(tensor.ndim() == rank, ValueError)
      << name << " has shape " << text(tensor.shape()) << ", wanted " << rank << " dimension" << (rank == 1 ? "" : "s");
  TVM_FFI_CHECK(tensor.IsContiguous(), ValueError)
      << name << " is not contiguous: shape " << text(tensor.shape()) << ", strides " << text(tensor.strides());
}

inline void check_shape(const TensorView& tensor, const char* name, std::initializer_list<int64_t> want, const char* why) {
  const tvm::ffi::ShapeView wanted(want.begin(), want.size());
  bool same = static_cast<size_t>(tensor.ndim()) == want.size();
  for (size_t i = 0; same && i < want.size(); ++i) same = tensor.size(static_cast<int64_t>(i)) == wanted[i];
  TVM_FFI_CHECK(same, ValueError) << name << " has shape " << text(tensor.shape()) << ", wanted " << text(wanted) << " ("
                                  << why << ")";
}

inline void check_aligned(const TensorView& tensor, const char* name, uintptr_t alignment) {
  TVM_FFI_CHECK(reinterpret_cast<uintptr_t>(address(tensor)) % alignment == 0, ValueError)
      << name << " is not aligned to " << alignment << " bytes";
}

inline void check_cuda(const TensorView& tensor, const char* name) {
  TVM_FFI_CHECK(tensor.device().device_type == kDLCUDA, ValueError) << name << " is not on a CUDA device";
}

inline void check_same_device(const TensorView& tensor, const char* name, const TensorView& other, const char* other_name) {
  check_cuda(tensor, name);
  TVM_FFI_CHECK(tensor.device().device_id == other.device().device_id, ValueError)
      << name << " is on cuda:" << tensor.device().device_id << ", " << other_name << " on cuda:"
      << other.device().device_id;
}

inline void check_apart(const TensorView& out, const char* name, const TensorView& in, const char* in_name) {
  const char* a = address(out);
  const char* b = address(in);
  TVM_FFI_CHECK(a + bytes(out) <= b || b + bytes(in) <= a, ValueError) << name << " overlaps " << in_name;
}

inline void check_cuda_status(cudaError_t status, const char* what) {
  TVM_FFI_CHECK(status == cudaSuccess, RuntimeError) << what << ": " << cudaGetErrorName(status) << ": "
                                                     << cudaGetErrorString(status);
}

// Makes a device current for a scope; a call for the device that is current already changes nothing.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    check_cuda_status(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ != device) {
      check_cuda_status(cudaSetDevice(device), "cudaSetDevice");
      changed_ = true;
    }
  }
  ~DeviceScope() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

// The caller's stream on the tensor's device: TVM-FFI carries torch's current one over for each call.
inline cudaStream_t stream_of(const TensorView& tensor) {
  return static_cast<cudaStream_t>(TVMFFIEnvGetStream(tensor.device().device_type, tensor.device().device_id));
}

}  // namespace sparkforge
