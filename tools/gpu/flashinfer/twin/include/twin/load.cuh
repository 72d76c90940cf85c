// What stands for ldmatrix with .b8x16.b4x16_p64, which makes bytes of nibbles: here they are bytes already, each row of
// 16 of them where the nibbles and their padding would lie, so that the plain load gives every lane the same elements.
#pragma once

#include <cstdint>

namespace sparkforge::twin {

__device__ inline void load_matrix(uint32_t address, uint32_t& d0, uint32_t& d1, uint32_t& d2, uint32_t& d3) {
#ifdef __CUDA_ARCH__  // host compilers read this too
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(d0), "=r"(d1), "=r"(d2), "=r"(d3)
               : "r"(address));
#endif
}

}  // namespace sparkforge::twin
