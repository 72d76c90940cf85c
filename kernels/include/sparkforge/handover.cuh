// How the blocks of one launch hand data to one another; device code.
//
// Words of 64 bits: 32 bits of data and this launch's tag. A word is read and written whole (PTX: one access of 64 bits), so
// a reader that sees the tag has the data: no flag, no fence, nothing to reset. A tag is the number of the launch on this
// scratch, counted from 1; scratch is zero before the first. One scratch serves one stream at a time.
#pragma once

#include <cstdint>

namespace sparkforge {

__device__ __forceinline__ void put(uint64_t* to, uint32_t data, uint32_t tag) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(uint64_t{tag} << 32 | data) : "memory");
}

__device__ __forceinline__ bool get(const uint64_t* from, uint32_t& data, uint32_t tag) {
  uint64_t word;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  data = static_cast<uint32_t>(word);
  return static_cast<uint32_t>(word >> 32) == tag;
}

// Two words and their tags.
__device__ __forceinline__ void get(const uint64_t* from, uint32_t& first, uint32_t& second, uint32_t& first_tag,
                                    uint32_t& second_tag) {
  uint64_t a, b;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(from) : "memory");
  first = static_cast<uint32_t>(a);
  second = static_cast<uint32_t>(b);
  first_tag = static_cast<uint32_t>(a >> 32);
  second_tag = static_cast<uint32_t>(b >> 32);
}

// Two words; whether both are of this launch.
__device__ __forceinline__ bool get(const uint64_t* from, uint32_t& first, uint32_t& second, uint32_t tag) {
  uint32_t tags[2];
  get(from, first, second, tags[0], tags[1]);
  return tags[0] == tag && tags[1] == tag;
}

// The last thing of a launch, by one thread of each block, when the block has read `launches` and nothing of it waits for
// another block any more: the last block to come makes the scratch ready for the next launch.
__device__ __forceinline__ void end_launch(uint32_t* launches, uint32_t* left, uint32_t tag, unsigned blocks) {
  if (atomicAdd(left, 1) == blocks - 1) {
    *left = 0;
    *launches = tag;
  }
}

}  // namespace sparkforge
