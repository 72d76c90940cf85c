// The names that the binding gives to tactics, on the host.
//
// get_tactic_name.inc is the text of FusedMoeRunner::getTacticName; the tactics are FlashInfer's configs.
#include <cstdio>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "cutlass_extensions/gemm_configs.h"

namespace tvm::ffi {
using String = std::string;
}
struct Check {
  bool held;
  ~Check() noexcept(false) {
    if (!held) throw std::runtime_error("check");
  }
  template <typename T>
  Check& operator<<(T const&) {
    return *this;
  }
};
#define TVM_FFI_ICHECK(condition) Check{bool(condition)}

struct Runner {
  using Profile = tensorrt_llm::cutlass_extensions::CutlassGemmConfig;
  std::vector<Profile> mAllProfiles;
#include "get_tactic_name.inc"
};

int main() {
  namespace ce = tensorrt_llm::cutlass_extensions;
  Runner runner;
  for (bool swap_ab : {false, true}) {
    for (bool finalize : {false, true}) {
      Runner::Profile config(ce::CutlassTileConfigSM120::CtaShape128x128x128B, ce::MainloopScheduleType::AUTO,
                             ce::EpilogueScheduleType::AUTO, ce::ClusterShape::ClusterShape_1x1x1);
      config.swap_ab = swap_ab;
      if (finalize) config.epilogue_fusion_type = Runner::Profile::EpilogueFusionType::FINALIZE;
      runner.mAllProfiles.push_back(config);
    }
  }
  runner.mAllProfiles.emplace_back(ce::CutlassTileConfig::CtaShape16x128x64_WarpShape16x32x64,
                                   ce::SplitKStyle::NO_SPLIT_K, 1, 3);
  for (size_t id = 0; id < runner.mAllProfiles.size(); ++id) {
    std::printf("%s\n", runner.getTacticName(id).c_str());
  }
  try {
    runner.getTacticName(runner.mAllProfiles.size());
    std::printf("accepted\n");
  } catch (std::runtime_error const&) {
    std::printf("refused\n");
  }
}
