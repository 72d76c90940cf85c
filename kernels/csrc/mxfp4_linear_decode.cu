// y[M, N] = x[M, K] W^T + b for M = 1..8: plans for the tile loop of mxfp4_linear_decode.cuh, and their choice.
#include "launch_tiles.cuh"

namespace sparkforge {

// Integers only as template arguments: an audit of the compiled code shows them.
template <int kLayout, int kWarps, int kSteps, int kGroup, int kSplit, int kBlocks>
__global__ void __launch_bounds__(decode::Plan<kWarps, kSteps, kGroup, kSplit>::kThreads, kBlocks)
    mxfp4_linear_decode_kernel(const decode::Params p) {
  decode::Store epilogue;
  decode::tile_loop<decode::LayoutOf<kLayout>, decode::Plan<kWarps, kSteps, kGroup, kSplit>>(p, epilogue);
}

namespace {

template <int kLayout, int kWarps, int kSteps, int kGroup, int kSplit = 1, int kBlocks = 1>
constexpr decode::Variant variant() {
  return decode::variant<decode::LayoutOf<kLayout>, decode::Plan<kWarps, kSteps, kGroup, kSplit>>(
      reinterpret_cast<const void*>(mxfp4_linear_decode_kernel<kLayout, kWarps, kSteps, kGroup, kSplit, kBlocks>), kBlocks);
}

// In the order of choice: the first that holds K, and for many rows the first of those with more than one block to a
// multiprocessor. Measured: results/kernels/dense-sm90.json. K = 2880 and 4096 are gpt-oss's.
const decode::Variant kRows[] = {
    variant<int(Layout::kRows), 12, 2, 2>(),
    variant<int(Layout::kRows), 16, 2, 2>(),
    variant<int(Layout::kRows), 0, 0, 1>(),
};
const decode::Variant kMarlin[] = {
    variant<int(Layout::kMarlin), 15, 6, 3>(),
    variant<int(Layout::kMarlin), 8, 8, 4, 2>(),
    variant<int(Layout::kMarlin), 16, 8, 2>(),
    variant<int(Layout::kMarlin), 0, 0, 1>(),
};
const decode::Variant kPacked[] = {
    variant<int(Layout::kPacked), 15, 3, 3>(),
    variant<int(Layout::kPacked), 9, 5, 5, 1, 2>(),
    variant<int(Layout::kPacked), 16, 4, 4>(),
    variant<int(Layout::kPacked), 0, 0, 1>(),
};

}  // namespace

cudaError_t launch(const Mxfp4LinearDecode& call, cudaStream_t stream) {
  switch (call.layout) {
    case Layout::kRows: return decode::launch(call, kRows, nullptr, stream);
    case Layout::kMarlin: return decode::launch(call, kMarlin, nullptr, stream);
    case Layout::kPacked: return decode::launch(call, kPacked, nullptr, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace sparkforge
