// Where a copy by TMA may start: boxes of 256 words of 16 bits, as those of the scale factors are, from word 0 to 16 of
// a tensor of 512-byte rows. A line of JSON for each start. Each runs in a process of its own, as an illegal instruction
// ends a CUDA context.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <vector>

__global__ void copy(__grid_constant__ CUtensorMap const map, int start, uint8_t* out) {
  __shared__ alignas(128) uint8_t box[512];
  __shared__ alignas(8) uint64_t barrier;
  uint32_t const at = uint32_t(__cvta_generic_to_shared(&barrier)), to = uint32_t(__cvta_generic_to_shared(box));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("fence.proxy.async;");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 512;" ::"r"(at));
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            to),
        "l"(&map), "r"(start), "r"(1), "r"(at)
        : "memory");
  }
  __syncwarp();
  asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra W; }" ::"r"(at));
  for (int i = threadIdx.x; i < 512; i += 32) out[i] = box[i];
}

// 0: the right bytes arrived; 1: others did; 2: the GPU refused.
int attempt(int start) {
  PFN_cuTensorMapEncodeTiled_v12000 encode;
  cudaDriverEntryPointQueryResult found;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", reinterpret_cast<void**>(&encode), 12000,
                                       cudaEnableDefault, &found) != cudaSuccess) return 3;
  std::vector<uint8_t> tensor(3 * 512), got(512);
  for (size_t i = 0; i < tensor.size(); ++i) tensor[i] = uint8_t(i * 7 + i / 256 + 1);
  uint8_t *from, *to;
  if (cudaMalloc(&from, tensor.size()) != cudaSuccess || cudaMalloc(&to, 512) != cudaSuccess) return 3;
  cudaMemcpy(from, tensor.data(), tensor.size(), cudaMemcpyHostToDevice);
  CUtensorMap map;
  cuuint64_t const extents[] = {256, 3}, strides[] = {512};
  cuuint32_t const box[] = {256, 1}, steps[] = {1, 1};
  if (encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, from, extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)) return 3;
  copy<<<1, 32>>>(map, start, to);
  if (cudaDeviceSynchronize() != cudaSuccess) return 2;
  cudaMemcpy(got.data(), to, 512, cudaMemcpyDeviceToHost);
  for (int i = 0; i < 512; ++i) {
    if (got[i] != (2 * start + i < 512 ? tensor[512 + 2 * start + i] : 0)) return 1;
  }
  return 0;
}

int main() {
  char const* const words[] = {"right", "wrong", "refused", "not tried"};
  for (int start : {0, 1, 2, 4, 6, 8, 12, 16}) {
    pid_t const child = fork();
    if (child == 0) _exit(attempt(start));
    int status = 0;
    waitpid(child, &status, 0);
    int const code = WIFEXITED(status) && WEXITSTATUS(status) < 4 ? WEXITSTATUS(status) : 3;
    std::printf("{\"start_bytes\": %d, \"copy\": \"%s\"}\n", 2 * start, words[code]);
    std::fflush(stdout);
  }
}
