// Which compiled runner the binding makes for given types, on the host.
//
// constructor.inc, predicates.inc, profiled_type.inc and what the two ways to run check of the input's scales are text
// of FusedMoeRunner in FlashInfer's binding; a runner is the names of its types. Prints for each activation, output and
// use_mxfp8_act_scaling, with FP4 weights:
//   <activation> <output> <mxfp8> <runner> inner=<n> profiled=<type> nvfp4=<0|1> mxfp4_mxfp8=<0|1>, or "refused"
// and after each runner, in a line that starts with "scales", whether each way runs without scales and with them:
//   scales <activation> <output> <mxfp8> run=<0|1><0|1> min_latency=<0|1><0|1>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#define ENABLE_BF16
#define ENABLE_FP8
#define ENABLE_FP4

struct DLDataType {
  int code, bits, lanes;
  bool operator==(DLDataType const& o) const { return code == o.code && bits == o.bits && lanes == o.lanes; }
  bool operator!=(DLDataType const& o) const { return !(*this == o); }
};
constexpr int64_t encode_dlpack_dtype(DLDataType d) { return d.code * 65536 + d.bits * 256 + d.lanes; }
constexpr DLDataType dl_float16{2, 16, 1}, dl_bfloat16{4, 16, 1}, dl_float8_e4m3fn{10, 8, 1}, dl_uint8{1, 8, 1},
    dl_int64{0, 64, 1};
constexpr int64_t float16_code = encode_dlpack_dtype(dl_float16), bfloat16_code = encode_dlpack_dtype(dl_bfloat16),
                  float8_e4m3fn_code = encode_dlpack_dtype(dl_float8_e4m3fn), int64_code = encode_dlpack_dtype(dl_int64);
static std::string DLDataTypeToString(DLDataType d) {
  if (d == dl_float16) return "f16";
  if (d == dl_bfloat16) return "bf16";
  if (d == dl_float8_e4m3fn) return "e4m3";
  if (d == dl_int64) return "int64";
  return "other";
}

struct Check {
  bool held;
  ~Check() noexcept(false) {
    if (!held) throw std::runtime_error("refused");
  }
  template <typename T>
  Check& operator<<(T const&) {
    return *this;
  }
};
#define TVM_FFI_ICHECK(condition) Check{bool(condition)}
#define TVM_FFI_LOG_AND_THROW(kind) Check{false}

struct half {};
struct __nv_bfloat16 {};
struct __nv_fp8_e4m3 {};
struct __nv_fp4_e2m1 {};
namespace cutlass {
struct uint4b_t {};
}
template <typename T>
std::string name() {
  if (std::is_same_v<T, half>) return "f16";
  if (std::is_same_v<T, __nv_bfloat16>) return "bf16";
  if (std::is_same_v<T, __nv_fp8_e4m3>) return "e4m3";
  if (std::is_same_v<T, __nv_fp4_e2m1>) return "e2m1";
  return "other";
}

namespace kernels {
enum class MoeGemmId { GEMM_1, GEMM_2 };
struct CutlassMoeFCRunnerInterface {
  std::string types;
  virtual ~CutlassMoeFCRunnerInterface() = default;
  std::vector<int> getTactics(MoeGemmId) { return {0}; }
};
template <typename T, typename W, typename Output = T, typename Input = T, typename Scale = Output, bool Mx = false>
struct CutlassMoeFCRunner : CutlassMoeFCRunnerInterface {
  CutlassMoeFCRunner() {
    types = name<T>() + "x" + name<W>() + ",out=" + name<Output>() + ",in=" + name<Input>() + (Mx ? ",mx" : "");
  }
};
struct GemmProfilerBackend {};
}  // namespace kernels

struct Scales {
  bool given;
  bool has_value() const { return given; }
};

struct FusedMoeRunner {
  void run(Scales input_sf) const {
#include "run_checks.inc"
  }
  void run_min_latency(Scales input_sf) const {
#include "min_latency_checks.inc"
  }
#include "constructor.inc"
#include "predicates.inc"
  DLDataType profiled() const {
#include "profiled_type.inc"
    return activation_dtype;
  }
  std::shared_ptr<kernels::CutlassMoeFCRunnerInterface> mKernelRunner;
  std::shared_ptr<kernels::GemmProfilerBackend> mProfiler;
  DLDataType mActivationDtype, mWeightDtype, mOutputDtype;
  int64_t mInnerDimMultiplier;
  bool mUseDeepSeekFP8BlockScaling = false, mUseW4GroupScaling = false, mUseMxfp8ActScaling = false,
       mUsePackedWeights = false;
  std::vector<int> mAllProfiles;
  int64_t mGemm1TacticCount{0}, mGemm2TacticCount{0};
};

template <typename Run>
std::string taken(Run run) {
  std::string said;
  for (bool given : {false, true}) {
    try {
      run(Scales{given});
      said += "1";
    } catch (std::runtime_error const&) {
      said += "0";
    }
  }
  return said;
}

int main() {
  for (DLDataType activation : {dl_bfloat16, dl_float16, dl_float8_e4m3fn, dl_int64}) {
    for (DLDataType output : {dl_bfloat16, dl_float16}) {
      for (bool mxfp8 : {false, true}) {
        std::printf("%s %s %d ", DLDataTypeToString(activation).c_str(), DLDataTypeToString(output).c_str(), mxfp8);
        try {
          FusedMoeRunner runner(activation, dl_int64, output, false, false, mxfp8, false);
          std::printf("%s inner=%d profiled=%s nvfp4=%d mxfp4_mxfp8=%d\n", runner.mKernelRunner->types.c_str(),
                      int(runner.mInnerDimMultiplier), DLDataTypeToString(runner.profiled()).c_str(),
                      runner.isNvfp4Quant(), runner.isWMxfp4AMxfp8Quant());
          std::printf("scales %s %s %d run=%s min_latency=%s\n", DLDataTypeToString(activation).c_str(),
                      DLDataTypeToString(output).c_str(), mxfp8,
                      taken([&](Scales scales) { runner.run(scales); }).c_str(),
                      taken([&](Scales scales) { runner.run_min_latency(scales); }).c_str());
        } catch (std::runtime_error const&) {
          std::printf("refused\n");
        }
      }
    }
  }
}
