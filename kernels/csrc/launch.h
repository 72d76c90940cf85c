// One way to launch a kernel: the status is that of this launch and of nothing before it.
#pragma once

#include <cuda_runtime_api.h>

namespace sparkforge {

struct Launch {
  unsigned blocks;
  unsigned threads;
  size_t shared;        // dynamic shared memory, bytes
  cudaStream_t stream;
  bool overlap;         // programmatic dependent launch: start while the kernel before is still running
};

// Enqueues `kernel` with `arguments` (addresses of its parameters); allocates nothing, synchronises nothing.
inline cudaError_t launch(const void* kernel, void** arguments, const Launch& how) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(how.blocks);
  config.blockDim = dim3(how.threads);
  config.dynamicSmemBytes = how.shared;
  config.stream = how.stream;
  config.attrs = how.overlap ? &attribute : nullptr;
  config.numAttrs = how.overlap ? 1 : 0;
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

// Lets a kernel use more than 48 KiB of dynamic shared memory; once for each kernel and device is enough.
inline cudaError_t allow_shared(const void* kernel, size_t bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

}  // namespace sparkforge
