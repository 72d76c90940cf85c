#pragma once
namespace cutlass::epilogue::thread {
template <typename T>
struct Relu2;
}  // namespace cutlass::epilogue::thread
