// FlashInfer's MoE as it is called for gpt-oss (BF16 input, MXFP8 x MXFP4, SwiGLU with limits): expand and quantize,
// GEMM1, SwiGLU and quantize, GEMM2, FINALIZE, with every pair of tactics that its runner offers for SM12x.
//   op [--plant NAME]    --plant: a defect of the inputs that the comparison must find
// A line of JSON for each pair of tactics and number of tokens.
#include <algorithm>
#include <cstring>
#include <string>

#include "fused_moe/cutlass_backend/cutlass_fused_moe_kernels.cuh"

#include "check.h"
#include "reference.cuh"

namespace moe = tensorrt_llm::kernels::cutlass_kernels;
namespace extensions = tensorrt_llm::cutlass_extensions;
using Runner = moe::CutlassMoeFCRunner<__nv_fp8_e4m3, __nv_fp4_e2m1, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16>;
template class moe::CutlassMoeFCRunner<__nv_fp8_e4m3, __nv_fp4_e2m1, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16>;

namespace sparkforge::op {  // named: the headers above use namespaces that have unnamed ones of their own

constexpr int kExperts = 128, kTopK = 4;
constexpr int64_t kSize = 2944, kUsed = 2880, kBlocks = kSize / 32;  // hidden and inner
constexpr float kAlpha = 1.702f, kBeta = 1.f, kLimit = 7.f;

__host__ __device__ inline uint32_t mixed(uint64_t x) {
  x = (x + 0x9E3779B97F4A7C15ull) * 0xBF58476D1CE4E5B9ull;
  x ^= x >> 29;
  x *= 0x94D049BB133111EBull;
  return uint32_t(x >> 32);
}
__host__ __device__ inline float even(uint64_t x) { return float(mixed(x) >> 8) / 8388608.f - 1.f; }

// Rows and columns behind kUsed are zero, as vLLM pads them; the scales there are those of zeros.
__global__ void make_weights(uint8_t* codes, uint8_t* scales, int64_t rows, int64_t half, uint64_t seed) {
  int64_t const count = kExperts * rows * kSize;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x) {
    int64_t const row = i / kSize % rows, k = i % kSize, expert = i / kSize / rows;
    bool const used = k < kUsed && row % half < kUsed;
    codes[i] = used ? mixed(i ^ seed) >> 28 : 0;
    if (k % 32 == 0) {
      scales[expert * rows * kBlocks + scale_at(row, k / 32, kBlocks)] = used ? 118 + mixed(i ^ seed ^ 99) % 3 : 0;
    }
  }
}

__global__ void make_input(__nv_bfloat16* out, int64_t count) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x) {
    out[i] = __float2bfloat16_rn(i % kSize < kUsed ? even(i * 3 + 1) + even(i * 5 + 2) * even(i * 7) * 4.f : 0.f);
  }
}

// MXFP8 and back, 32 values a thread: the scale is the least power of two that holds the largest value below 448.
__global__ void quantized(__nv_bfloat16 const* in, double* out, int64_t blocks) {
  int64_t const block = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (block >= blocks) return;
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = fmaxf(largest, fabsf(__bfloat162float(in[block * 32 + i])));
  double scale = 0x1p-127;
  while (scale * 448 < largest) scale *= 2;
  for (int i = 0; i < 32; ++i) {
    double const value = __bfloat162float(in[block * 32 + i]) / scale;
    out[block * 32 + i] = largest == 0 ? 0 : scale * e4m3(__nv_cvt_double_to_fp8(value, __NV_SATFINITE, __NV_E4M3));
  }
}

// One output a thread: out[row, column] for the expert of the row; row r reads input row r / per_row.
__global__ void multiplied(double const* in, int per_row, uint8_t const* codes, uint8_t const* scales, int const* expert,
                           int64_t rows, int64_t columns, double* out) {
  int64_t const index = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= rows * columns) return;
  int64_t const row = index / columns, column = index % columns, base = expert[row] * columns;
  double const* const left = in + row / per_row * kSize;
  uint8_t const* const right = codes + (base + column) * kSize;
  double sum = 0;
  for (int64_t block = 0; block < kBlocks; ++block) {
    double dot = 0;
    for (int i = 0; i < 32; ++i) dot += left[block * 32 + i] * e2m1(right[block * 32 + i]);
    sum += dot * ue8m0(scales[base * kBlocks + scale_at(column, block, kBlocks)]);
  }
  out[index] = sum;
}

// SwiGLU of gpt-oss on rows of [up ; gate], rounded to BF16 where FlashInfer's kernels store.
__global__ void activated(double const* in, __nv_bfloat16 const* bias, int const* expert, int64_t rows,
                          __nv_bfloat16* out) {
  int64_t const index = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= rows * kSize) return;
  int64_t const row = index / kSize, column = index % kSize;
  auto value = [&](int64_t at) {
    return double(__bfloat162float(__double2bfloat16(in[row * 2 * kSize + at]))) +
           __bfloat162float(bias[expert[row] * 2 * kSize + at]);
  };
  double const up = fmax(fmin(value(column), kLimit), -kLimit), gate = fmin(value(kSize + column), kLimit);
  out[index] = __double2bfloat16(gate / (1 + exp(-kAlpha * gate)) * (up + kBeta));
}

// Of each token: the weighted sum, and the sum of the magnitudes of its terms.
__global__ void weighted(double const* in, __nv_bfloat16 const* bias, int const* expert, float const* weights,
                         int64_t tokens, double* out, double* magnitude) {
  int64_t const index = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= tokens * kSize) return;
  int64_t const token = index / kSize, column = index % kSize;
  double sum = 0, all = 0;
  for (int i = 0; i < kTopK; ++i) {
    int64_t const row = token * kTopK + i;
    double const term = weights[row] * (in[row * kSize + column] + __bfloat162float(bias[expert[row] * kSize + column]));
    sum += term, all += fabs(term);
  }
  out[index] = sum, magnitude[index] = all;
}

unsigned blocks_of(int64_t count) { return unsigned((count + 255) / 256); }

struct Layer {
  Arena arena;
  uint8_t *codes1, *scales1, *codes2, *scales2;
  __nv_bfloat16 *bias1, *bias2;
  float *alpha, *beta, *limit, *ones;
};

void make(Layer& layer) {
  Arena& arena = layer.arena;
  layer.codes1 = arena.take<uint8_t>((kExperts + 1) * 2 * kSize * kSize);
  layer.scales1 = arena.take<uint8_t>((kExperts + 1) * 2 * kSize * kBlocks);
  layer.codes2 = arena.take<uint8_t>((kExperts + 1) * kSize * kSize);
  layer.scales2 = arena.take<uint8_t>((kExperts + 1) * kSize * kBlocks);
  make_weights<<<2048, 256>>>(layer.codes1, layer.scales1, 2 * kSize, kSize, 11);
  make_weights<<<2048, 256>>>(layer.codes2, layer.scales2, kSize, kSize, 22);
  std::vector<__nv_bfloat16> bias1((kExperts + 1) * 2 * kSize), bias2((kExperts + 1) * kSize);
  for (size_t i = 0; i < bias1.size(); ++i) bias1[i] = __float2bfloat16_rn(int64_t(i) % kSize < kUsed ? even(i + 5) : 0);
  for (size_t i = 0; i < bias2.size(); ++i) bias2[i] = __float2bfloat16_rn(int64_t(i) % kSize < kUsed ? even(i + 7) : 0);
  layer.bias1 = arena.copy(bias1), layer.bias2 = arena.copy(bias2);
  auto all = [&](float value) { return arena.copy(std::vector<float>(kExperts, value)); };
  layer.alpha = all(kAlpha), layer.beta = all(kBeta), layer.limit = all(kLimit), layer.ones = all(1.f);
  CHECK(cudaDeviceSynchronize());
}

struct Step {
  Arena arena;
  int64_t tokens;
  __nv_bfloat16* input;
  int* expert;     // [tokens, 4]; expert 0 has no tokens
  float* weights;  // [tokens, 4]
  std::vector<double> wanted, magnitude;
};

void make(Step& step, Layer const& layer, int64_t tokens) {
  Arena& arena = step.arena;
  int64_t const rows = tokens * kTopK;
  step.tokens = tokens;
  std::vector<int> expert(rows);
  std::vector<float> weights(rows);
  for (int64_t row = 0; row < rows; ++row) {
    auto const first = expert.begin() + row / kTopK * kTopK;
    uint64_t attempt = row * 1000 + tokens;
    // Half of the choices fall on few experts, so that some get more rows than a tile has columns.
    do {
      uint32_t const random = mixed(attempt++);
      expert[row] = 1 + int(random % 2 ? random / 2 % (kExperts - 1) : random / 2 % 6);
    } while (std::find(first, expert.begin() + row, expert[row]) != expert.begin() + row);
    weights[row] = 0.25f + 0.2f * even(row + 31);
  }
  step.input = arena.take<__nv_bfloat16>(tokens * kSize);
  make_input<<<64, 256>>>(step.input, tokens * kSize);
  step.expert = arena.copy(expert), step.weights = arena.copy(weights);

  Arena scratch;
  auto* in = scratch.take<double>(tokens * kSize);
  auto* inner = scratch.take<double>(rows * 2 * kSize);
  auto* active = scratch.take<__nv_bfloat16>(rows * kSize);
  auto* active_in = scratch.take<double>(rows * kSize);
  auto* outer = scratch.take<double>(rows * kSize);
  auto* wanted = scratch.take<double>(tokens * kSize);
  auto* magnitude = scratch.take<double>(tokens * kSize);
  quantized<<<blocks_of(tokens * kBlocks), 256>>>(step.input, in, tokens * kBlocks);
  multiplied<<<blocks_of(rows * 2 * kSize), 256>>>(in, kTopK, layer.codes1, layer.scales1, step.expert, rows, 2 * kSize,
                                                   inner);
  activated<<<blocks_of(rows * kSize), 256>>>(inner, layer.bias1, step.expert, rows, active);
  quantized<<<blocks_of(rows * kBlocks), 256>>>(active, active_in, rows * kBlocks);
  multiplied<<<blocks_of(rows * kSize), 256>>>(active_in, 1, layer.codes2, layer.scales2, step.expert, rows, kSize, outer);
  weighted<<<blocks_of(tokens * kSize), 256>>>(outer, layer.bias2, step.expert, step.weights, tokens, wanted, magnitude);
  CHECK(cudaGetLastError());
  step.wanted.resize(tokens * kSize), step.magnitude.resize(tokens * kSize);
  CHECK(cudaMemcpy(step.wanted.data(), wanted, step.wanted.size() * 8, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(step.magnitude.data(), magnitude, step.magnitude.size() * 8, cudaMemcpyDeviceToHost));
}

// Runs the op with two tactics; the error against the reference, relative to the reference's root mean square.
struct Error {
  double whole, worst;
  long beyond;
};

Error run(Runner& runner, Layer const& layer, Step const& step, std::string const& planted, uint8_t fill) {
  Arena arena;
  moe::MOEParallelismConfig const one{};
  moe::ActivationParams const activation(moe::ActivationType::SwigluBias, layer.alpha, layer.beta, layer.limit);
  size_t const bytes = runner.getWorkspaceSize(step.tokens, kSize, kSize, kExperts, kTopK, activation, one, false, false,
                                               true, false, false);
  auto* const workspace = arena.take<char>(bytes);
  CHECK(cudaMemset(workspace, fill, bytes));
  auto* const map = arena.take<int>(step.tokens * kTopK);
  auto* const output = arena.take<__nv_bfloat16>(step.tokens * kSize);
  CHECK(cudaMemset(output, 0xFF, step.tokens * kSize * 2));
  tensorrt_llm::kernels::LoraParams lora{};
  moe::MoeMinLatencyParams latency{};
  auto const scales = moe::QuantParams::MXFP8MXFP4(
      layer.scales1 + (planted == "scales1" ? 2 * kSize * kBlocks : 0), layer.ones, layer.scales2, layer.ones);
  runner.runMoe(step.input, nullptr, false, step.expert, step.weights,
                layer.codes1 + (planted == "halves" ? kSize * kSize : 0), layer.bias1, activation,
                layer.codes2 + (planted == "expert2" ? kSize * kSize : 0),
                layer.bias2 + (planted == "bias2" ? kSize : 0), scales, step.tokens, kSize, kSize, kSize, kExperts, kTopK,
                workspace, output, map, one, false, false, lora, false, true, false, latency, false, nullptr);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  std::vector<__nv_bfloat16> got(step.tokens * kSize);
  CHECK(cudaMemcpy(got.data(), output, got.size() * 2, cudaMemcpyDeviceToHost));
  double square = 0, of_error = 0;
  for (double value : step.wanted) square += value * value;
  double const mean = std::sqrt(square / (step.tokens * kUsed));
  Error error{0, 0, 0};
  for (size_t i = 0; i < got.size(); ++i) {
    double const off = std::fabs(double(__bfloat162float(got[i])) - step.wanted[i]);
    // BF16 rounds each of four terms and each of three sums; an FP8 code of the inner activations may be the next one.
    double const bound = step.magnitude[i] / 64 + mean / 64;
    of_error += off * off;
    error.worst = std::max(error.worst, off / bound);
    error.beyond += !(off <= bound);
  }
  error.whole = std::sqrt(of_error / square);
  return error;
}

}  // namespace sparkforge::op

int main(int count, char** words) {
  using namespace sparkforge::op;
  std::string const planted = count > 2 && std::strcmp(words[1], "--plant") == 0 ? words[2] : "none";
  Layer layer;
  make(layer);
  Runner runner;
  auto const first = runner.getTactics(moe::MoeGemmId::GEMM_1), second = runner.getTactics(moe::MoeGemmId::GEMM_2);
  std::printf("{\"gemm1\": %zu, \"gemm2\": %zu}\n", first.size(), second.size());
  auto name = [](extensions::CutlassGemmConfig const& tactic) {
    auto const [m, n, k] = extensions::enum_to_shape_tuple(tactic.tile_config_sm120);
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + (tactic.swap_ab ? " swap_ab" : "") +
           (int(tactic.epilogue_fusion_type) ? " finalize" : "");
  };
  for (int64_t tokens : {int64_t(1), int64_t(5), int64_t(96)}) {
    Step step;
    make(step, layer, tokens);
    uint8_t fill = 0x00;
    for (auto const& one : first) {
      for (auto const& two : second) {
        if (planted != "none" && (&one != &first.front() || tokens != 5)) continue;
        runner.setTactic(one, two);
        Error const error = run(runner, layer, step, planted, fill ^= 0xFF);
        std::printf("{\"tokens\": %ld, \"gemm1\": \"%s\", \"gemm2\": \"%s\", \"planted\": \"%s\", \"compared\": %zu, "
                    "\"beyond\": %ld, \"worst\": %.4f, \"error\": %.6f}\n",
                    long(tokens), name(one).c_str(), name(two).c_str(), planted.c_str(), step.wanted.size(), error.beyond,
                    std::min(error.worst, 1e12), std::min(error.whole, 1e12));
        std::fflush(stdout);
      }
    }
  }
}
