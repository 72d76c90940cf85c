// Errors of CUDA end the program; memory lives as long as its arena.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                       \
  do {                                                                                    \
    cudaError_t const status = (call);                                                    \
    if (status != cudaSuccess) {                                                          \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status)); \
      std::exit(2);                                                                       \
    }                                                                                     \
  } while (0)

struct Arena {
  Arena() = default;
  Arena(Arena const&) = delete;
  ~Arena() {
    for (void* each : all) cudaFree(each);
  }
  template <class T>
  T* take(size_t count) {
    void* memory;
    CHECK(cudaMalloc(&memory, count * sizeof(T) + 16));
    all.push_back(memory);
    return static_cast<T*>(memory);
  }
  template <class T>
  T* copy(std::vector<T> const& values) {
    T* const memory = take<T>(values.size());
    CHECK(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return memory;
  }
  std::vector<void*> all;
};
