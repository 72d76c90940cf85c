// The binding's choice of tactics for given profile ids, on the host.
//
// set_runner_profiles.inc is the text of FusedMoeRunner::setRunnerProfiles as it stands in FlashInfer's
// binding. Around it stand the few things that it uses; a tactic is its own position in the list.
// Arguments: the number of GEMM1 tactics, of GEMM2 tactics. Prints for each pair of ids that is tried:
//   <id1> <id2> <chosen tactic of GEMM1> <of GEMM2>, or "<id1> <id2> refused"
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace tensorrt_llm::cutlass_extensions {
enum class CutlassTileConfigSM90 { CtaShape128x16x128B };
enum class MainloopScheduleType { AUTO };
enum class EpilogueScheduleType { AUTO };
enum class ClusterShape { ClusterShape_1x1x1 };
struct CutlassGemmConfig {
  int64_t position;
  CutlassGemmConfig(int64_t at) : position(at) {}
  CutlassGemmConfig(CutlassTileConfigSM90, MainloopScheduleType, EpilogueScheduleType, ClusterShape)
      : position(-1) {}
};
}  // namespace tensorrt_llm::cutlass_extensions

struct Check {
  bool held;
  std::ostringstream text{};
  explicit Check(bool result) : held(result) {}
  template <typename T>
  Check& operator<<(T const& value) {
    text << value;
    return *this;
  }
  ~Check() noexcept(false) {
    if (!held) throw std::runtime_error(text.str());
  }
};
#define TVM_FFI_ICHECK(condition) Check(bool(condition))
#define TVM_FFI_ICHECK_EQ(a, b) Check(int64_t(a) == int64_t(b))
#define TVM_FFI_ICHECK_GE(a, b) Check(int64_t(a) >= int64_t(b))
#define TVM_FFI_ICHECK_LT(a, b) Check(int64_t(a) < int64_t(b))

template <typename T>
using Optional = std::optional<T>;
template <typename T>
using Array = std::vector<T>;

struct KernelRunner {
  int64_t first = -1, second = -1;
  template <typename Profile>
  void setTactic(Profile const& one, Profile const& two) {
    first = one.position;
    second = two.position;
  }
};

struct Runner {
  using Profile = tensorrt_llm::cutlass_extensions::CutlassGemmConfig;
  bool mUseDeepSeekFP8BlockScaling = false;
  std::shared_ptr<KernelRunner> mKernelRunner = std::make_shared<KernelRunner>();
  std::vector<Profile> mAllProfiles;
  int64_t mGemm1TacticCount, mGemm2TacticCount;

  Runner(int64_t one, int64_t two) : mGemm1TacticCount(one), mGemm2TacticCount(two) {
    for (int64_t at = 0; at < one + two; ++at) mAllProfiles.emplace_back(at);
  }
#include "set_runner_profiles.inc"
};

int main(int, char** argv) {
  int64_t const one = std::atoll(argv[1]), two = std::atoll(argv[2]);
  Runner runner(one, two);
  for (int64_t id1 = -2; id1 <= one + two; ++id1) {
    for (int64_t id2 = -2; id2 <= one + two + 1; ++id2) {
      try {
        runner.setRunnerProfiles(Array<int64_t>{id1, id2});
        std::printf("%ld %ld %ld %ld\n", id1, id2, runner.mKernelRunner->first,
                    runner.mKernelRunner->second);
      } catch (std::runtime_error const&) {
        std::printf("%ld %ld refused\n", id1, id2);
      }
    }
  }
  runner.setRunnerProfiles({});
  std::printf("none none %ld %ld\n", runner.mKernelRunner->first, runner.mKernelRunner->second);
}
