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
  unsigned cluster = 1; // blocks that share their memory
};

// Enqueues `kernel` with `arguments` (addresses of its parameters); allocates nothing, synchronises nothing.
inline cudaError_t launch(const void* kernel, void** arguments, const Launch& how) {
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (how.overlap) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (how.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim = {how.cluster, 1, 1};
    ++count;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(how.blocks);
  config.blockDim = dim3(how.threads);
  config.dynamicSmemBytes = how.shared;
  config.stream = how.stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

// Lets a kernel use more than 48 KiB of dynamic shared memory; once for each kernel and device is enough. All kernels ask
// for the same split of first-level cache and shared memory: another one would keep two of them from running side by side.
inline cudaError_t allow_shared(const void* kernel, size_t bytes) {
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
  if (status != cudaSuccess) return status;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

}  // namespace sparkforge
