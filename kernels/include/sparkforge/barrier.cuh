// Barriers in shared memory that some warps arrive at and others wait for (PTX mbarrier); device code.
#pragma once

#include <cstdint>

#include "pipeline.cuh"

namespace sparkforge {

__device__ __forceinline__ void init_barrier(uint64_t* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Waits until the phase of this parity is complete. kPatient: leaves the issue slots to others meanwhile.
template <bool kPatient>
__device__ __forceinline__ void wait(uint64_t* barrier, unsigned parity) {
  unsigned done = 0;
  while (true) {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    if (done != 0) return;
    if (kPatient) __nanosleep(100);
  }
}

}  // namespace sparkforge
