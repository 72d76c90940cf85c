// Runs the compiled kernels on made-up experts and compares every output; a line of JSON for each comparison.
//   twin [--case NAME] [--plant NAME]     --plant: a defect of the inputs that the comparison must find
#include <algorithm>
#include <cstring>
#include <string>

#include "cases.h"
#include "reference.cuh"

namespace {

struct Case {
  std::string name;
  std::vector<int> rows;  // of each expert
  int64_t n, hidden;      // hidden: what FINALIZE keeps of n
  int top_k;
  bool alpha, bias;
  uint8_t fill;  // what the arrays hold before they are set up
};

constexpr int64_t kDepth = 2944, kUsed = 2880;
constexpr size_t kGuard = 4096;

uint64_t random_state = 0x5EED;
uint32_t random_u32() {
  random_state += 0x9E3779B97F4A7C15ull;
  uint64_t z = random_state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return uint32_t((z ^ (z >> 31)) >> 16);
}

std::vector<int> spread(int experts, int rows, int least_expert) {
  std::vector<int> all(experts);
  for (int i = 0; i < rows; ++i) all[least_expert + random_u32() % (experts - least_expert)] += 1;
  return all;
}

std::vector<int> only(int experts, std::vector<int> const& chosen, int rows) {
  std::vector<int> all(experts);
  for (int each : chosen) all[each] = rows;
  return all;
}

std::vector<Case> cases() {
  std::vector<int> every(300);
  for (int i = 0; i < 300; ++i) every[i] = i + 1;
  std::vector<int> const edges = {0,  1,   0,   7,   8,   31,  32,  33,  0, 0, 63,
                                  64, 65, 127, 128, 129, 255, 256, 257, 300, 0};
  std::vector<int> full = edges;
  full[0] = 300, full[2] = 4;
  return {
      {"every", every, 384, 384, 2, true, true, 0x00},
      {"edges", edges, 2944, 2880, 4, false, true, 0xFF},
      {"full-first", full, 2944, 2944, 4, true, false, 0x00},
      {"one-token", only(128, {3, 40, 77, 127}, 1), 2944, 2944, 4, false, true, 0x00},
      {"one-token-garbage", only(128, {3, 40, 77, 127}, 1), 2944, 2944, 4, false, true, 0xFF},
      {"gate-up", spread(128, 32, 1), 5888, 5888, 4, false, false, 0x7F},
      {"one-expert", only(128, {64}, 300), 2944, 2880, 1, false, true, 0xFF},
      {"plain-store", spread(32, 700, 0), 672, 672, 1, true, true, 0x00},
  };
}

__device__ uint32_t mixed(uint64_t x) {
  x = (x + 0x9E3779B97F4A7C15ull) * 0xBF58476D1CE4E5B9ull;
  x ^= x >> 29;
  x *= 0x94D049BB133111EBull;
  return uint32_t(x >> 32);
}

// E4M3 of all magnitudes but NaN, zero behind kUsed.
__global__ void make_activations(uint8_t* out, int64_t count) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x) {
    uint8_t const code = mixed(i) >> 8;
    out[i] = i % kDepth >= kUsed ? 0 : (code & 127) == 127 ? code - 1 : code;
  }
}

// E2M1, one to a byte; what lies behind kUsed is as random as the rest and must not count.
__global__ void make_weights(uint8_t* out, int64_t count) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x) {
    out[i] = mixed(i ^ 0x123456789ull) >> 28;
  }
}

// UE8M0 in 128x4 blocks: 2^-12 to 2^3, behind kUsed anything that is a number. Rows that pad a block keep 255, NaN.
__global__ void make_scales(uint8_t* out, int64_t rows, uint64_t seed) {
  int64_t const blocks = kDepth / 32;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * blocks;
       i += int64_t(gridDim.x) * blockDim.x) {
    uint32_t const random = mixed(i ^ seed) >> 8;
    out[scale_at(i / blocks, i % blocks, blocks)] = i % blocks >= kUsed / 32 ? random % 255 : 115 + random % 16;
  }
}

__global__ void swap_pairs(uint8_t* scales, int64_t rows) {
  int64_t const blocks = kDepth / 32;
  for (int64_t i = threadIdx.x; i < rows / 2 * blocks; i += blockDim.x) {
    int64_t const row = i / blocks * 2, block = i % blocks;
    uint8_t& one = scales[scale_at(row, block, blocks)];
    uint8_t& two = scales[scale_at(row + 1, block, blocks)];
    uint8_t const kept = one;
    one = two, two = kept;
  }
}

struct Made {
  Arena arena;
  Plain plain;
  Problem problem;
  Finalize finalize;
  Sum* sums;
  std::vector<int64_t> first_row;
};

void make(Made& made, Case const& each) {
  int const experts = int(each.rows.size());
  auto& first_row = made.first_row = {0};
  std::vector<int> expert_of;
  for (int i = 0; i < experts; ++i) {
    first_row.push_back(first_row.back() + each.rows[i]);
    expert_of.insert(expert_of.end(), each.rows[i], i);
  }
  int64_t const rows = first_row.back(), tokens = rows / each.top_k, blocks = kDepth / 32;
  if (rows % each.top_k) std::fprintf(stderr, "%s: %ld rows\n", each.name.c_str(), long(rows)), std::exit(2);
  std::vector<int> source(rows), row_of(rows);
  for (int64_t i = 0; i < rows; ++i) source[i] = int(i);
  for (int64_t i = rows - 1; i > 0; --i) std::swap(source[i], source[random_u32() % (i + 1)]);
  for (int64_t i = 0; i < rows; ++i) row_of[source[i]] = int(i);
  std::vector<float> alpha(experts), router(rows);
  for (float& value : alpha) value = std::ldexp(1.f, int(random_u32() % 5) - 2);
  for (float& value : router) value = 0.05f + float(random_u32() % 65536) / 65536.f;
  std::vector<__nv_bfloat16> bias(experts * each.n);
  for (auto& value : bias) value = __float2bfloat16_rn((float(random_u32() % 65536) / 32768.f - 1.f) * 4096.f);
  std::vector<int64_t> scales_start;
  for (int i = 0; i <= experts; ++i) scales_start.push_back(activation_scales_at(i, first_row[i], kDepth));

  Arena& arena = made.arena;
  int64_t const padded = (each.n + 127) / 128 * 128;
  auto* activations = arena.take<uint8_t>(rows * kDepth);
  auto* weights = arena.take<uint8_t>((experts + 1) * each.n * kDepth);
  auto* scales_a = arena.take<uint8_t>(scales_start.back() + 4096);
  auto* scales_w = arena.take<uint8_t>(experts * padded * blocks);
  make_activations<<<1024, 256>>>(activations, rows * kDepth);
  make_weights<<<1024, 256>>>(weights, (experts + 1) * each.n * kDepth);
  CHECK(cudaMemset(scales_a, 0xFF, scales_start.back() + 4096));
  CHECK(cudaMemset(scales_w, 0xFF, experts * padded * blocks));
  for (int i = 0; i < experts; ++i) {
    if (each.rows[i] > 0) make_scales<<<64, 256>>>(scales_a + scales_start[i], each.rows[i], 77 + i);
    make_scales<<<64, 256>>>(scales_w + i * padded * blocks, each.n, 7777 + i);
  }
  CHECK(cudaGetLastError());
  made.plain = {rows,     each.n,   kDepth, activations, weights, scales_a, scales_w, arena.copy(expert_of),
                arena.copy(scales_start), arena.copy(first_row)};
  made.finalize = {tokens, each.hidden, each.top_k, arena.copy(row_of), each.alpha ? arena.copy(alpha) : nullptr,
                   arena.copy(router), each.bias ? arena.copy(bias) : nullptr};
  made.problem = {experts, each.n, kDepth, made.plain.first_row, activations, weights, scales_a, scales_w,
                  made.finalize.alpha, made.finalize.bias, made.finalize.router_scales, arena.copy(source), nullptr};
  made.sums = arena.take<Sum>(rows * each.n);
  reference<<<unsigned((rows * each.n + 255) / 256), 256>>>(made.plain, made.sums);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
}

// Defects of what the kernel is given, after the reference has seen the right thing.
void plant(Made& made, Case const& each, std::string const& planted) {
  if (planted == "rows") {
    for (size_t i = 0; i < each.rows.size(); ++i) {
      auto* scales = const_cast<uint8_t*>(made.problem.activation_scales);
      swap_pairs<<<1, 256>>>(scales + activation_scales_at(i, made.first_row[i], kDepth), each.rows[i]);
    }
    CHECK(cudaDeviceSynchronize());
  } else if (planted == "expert") {
    made.problem.weights += each.n * kDepth;
  } else if (planted != "none" && planted != "output") {
    std::fprintf(stderr, "no defect %s\n", planted.c_str()), std::exit(2);
  }
}

Found run(Made& made, Case const& each, Variant const& variant, std::string const& planted, bool& guarded) {
  Arena arena;
  bool const reduce = each.top_k > 1;
  int64_t const outputs = variant.finalize ? made.finalize.tokens * each.hidden : made.plain.rows * each.n;
  size_t const bytes = outputs * sizeof(__nv_bfloat16);
  auto* const memory = arena.take<uint8_t>(bytes + 2 * kGuard);
  CHECK(cudaMemset(memory, 0xA5, bytes + 2 * kGuard));
  // NaN, where each output is written; zeros, where rows are added.
  CHECK(cudaMemset(memory + kGuard, variant.finalize && reduce ? 0x00 : 0xFF, bytes));
  auto* const output = reinterpret_cast<__nv_bfloat16*>(memory + kGuard);

  Problem problem = made.problem;
  problem.output = output;
  Input input;
  input.swap_ab = variant.swap_ab;
  input.fusion = variant.finalize ? Input::EpilogueFusion::FINALIZE : Input::EpilogueFusion::NONE;
  if (variant.finalize) input.setFinalizeFusionParams(output, int(each.hidden), int(made.finalize.tokens), reduce);
  set_up(input, problem, arena, each.fill);
  int multiprocessors = 0;
  CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  size_t workspace = 0;
  variant.launch(input, problem.experts, multiprocessors, &workspace);
  input.gemm_workspace = arena.take<uint8_t>(workspace);
  input.gemm_workspace_size = workspace;
  CHECK(cudaMemset(input.gemm_workspace, each.fill, workspace));
  variant.launch(input, problem.experts, multiprocessors, nullptr);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());

  if (planted == "output") {
    uint8_t byte;
    CHECK(cudaMemcpy(&byte, output + outputs / 2, 1, cudaMemcpyDeviceToHost));
    byte ^= 4;
    CHECK(cudaMemcpy(output + outputs / 2, &byte, 1, cudaMemcpyHostToDevice));
  }
  Found found{0, 0, 0, 0, 0.0, outputs};
  Found* const on_device = arena.copy(std::vector<Found>{found});
  unsigned const blocks = unsigned((outputs + 255) / 256);
  if (variant.finalize) {
    judge_tokens<<<blocks, 256>>>(made.plain, made.sums, made.finalize, output, on_device);
  } else {
    judge_rows<<<blocks, 256>>>(made.plain, made.sums, made.finalize.alpha, output, on_device);
  }
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(&found, on_device, sizeof(Found), cudaMemcpyDeviceToHost));
  std::vector<uint8_t> guards(2 * kGuard);
  CHECK(cudaMemcpy(guards.data(), memory, kGuard, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(guards.data() + kGuard, memory + kGuard + bytes, kGuard, cudaMemcpyDeviceToHost));
  guarded = true;
  for (uint8_t byte : guards) guarded &= byte == 0xA5;
  return found;
}

}  // namespace

int main(int count, char** words) {
  std::string chosen, planted = "none";
  for (int i = 1; i + 1 < count; i += 2) {
    (std::strcmp(words[i], "--case") == 0 ? chosen : planted) = words[i + 1];
  }
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  std::printf("{\"device\": \"%s\", \"capability\": \"%d.%d\", \"kernels\": %zu}\n", properties.name, properties.major,
              properties.minor, variants().size());
  for (Case const& each : cases()) {
    if (!chosen.empty() && each.name != chosen) continue;
    Made made;
    make(made, each);
    plant(made, each, planted);
    for (Variant const& variant : variants()) {
      bool guarded = false;
      Found const found = run(made, each, variant, planted, guarded);
      std::printf(
          "{\"case\": \"%s\", \"tile\": \"128x%dx128\", \"swap_ab\": %s, \"fusion\": \"%s\", \"experts\": %zu, \"rows\": "
          "%ld, \"n\": %ld, \"hidden\": %ld, \"k\": %ld, \"top_k\": %d, \"planted\": \"%s\", \"compared\": %llu, \"wrong\": %llu, "
          "\"beyond\": %llu, \"inexact\": %llu, \"worst\": %.4f, \"first\": %lld, \"guarded\": %s}\n",
          each.name.c_str(), variant.tile_n, variant.swap_ab ? "true" : "false", variant.finalize ? "FINALIZE" : "NONE",
          each.rows.size(), long(made.plain.rows), long(each.n), long(each.hidden), long(kDepth), each.top_k, planted.c_str(),
          found.compared, found.wrong, found.beyond, found.inexact, std::min(found.worst, 1e12), found.first, guarded ? "true" : "false");
      std::fflush(stdout);
    }
  }
}
