// Which tokens go to which experts, and what the blocks of mxfp4_moe_decode share; device code.
#pragma once

#include <sparkforge/handover.cuh>
#include <sparkforge/moe.cuh>

#include "mxfp4_moe_decode.h"

namespace sparkforge {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kSums = moe::kTokens * moe::kRows;  // of a tile, [row][token]

// Who goes where; filled by one warp once the ids are there.
struct Routes {
  alignas(8) int8_t pair[kMaxMoePairs][moe::kTokens];  // of a place and a token: its row of act, -1 for none
  float weight[kMaxMoePairs];                     // of a pair: the routing weights of its token for its expert
  float given[kMaxMoePairs];                      // routing weights as they came
  uint16_t expert[kMaxMoePairs];                  // of a place: experts in order of their first appearance
  int8_t place[kMaxMoePairs];                     // of a pair, -1 for an expert that is not here
  int places;
  uint32_t big;                                   // tokens that are not prescaled, a bit each
  uint32_t tag;                                   // of this launch
};

struct Scratch {
  uint32_t* launches;  // how many there were
  uint32_t* left;      // blocks that are done
  uint64_t* sums[2];   // of a phase: [block][row][token], float
  uint64_t* act;       // [pair][block of 32][t][4], two bf16 in the order of B's fragments
};

__host__ __device__ inline Scratch place(void* scratch, int parts) {
  char* at = static_cast<char*>(scratch);
  Scratch out;
  out.launches = reinterpret_cast<uint32_t*>(at);
  out.left = out.launches + 1;
  out.sums[0] = reinterpret_cast<uint64_t*>(at + 128);
  out.sums[1] = out.sums[0] + int64_t{parts} * kSums;
  out.act = out.sums[1] + int64_t{parts} * kSums;
  return out;
}

// One warp: which experts, which tokens. Pairs of one token and one expert that appear twice are one, weights added.
__device__ void find_routes(Routes& routes, const Mxfp4MoeDecode& call, const uint32_t* launches, int lane) {
  const uint32_t tag = __ldcg(launches) + 1;
  const int pairs = call.tokens * call.topk;
  int id[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int p = lane + kWarp * h;
    id[h] = p < pairs ? __ldcg(call.ids + p) : -1;
    if (id[h] < 0 || id[h] >= call.experts) id[h] = -1;
    routes.weight[p] = 0.0f;
    *reinterpret_cast<int64_t*>(routes.pair[p]) = -1;
    routes.given[p] = p < pairs ? __ldcg(call.weights + p) : 0.0f;
  }
  __syncwarp();
  const unsigned like0 = __match_any_sync(kAllLanes, id[0]);
  const unsigned like1 = __match_any_sync(kAllLanes, id[1]);
  int earlier = -1;  // a lane of the first half with the expert of this lane's second pair
  if (pairs > kWarp)
    for (int other = kWarp - 1; other >= 0; --other)
      if (__shfl_sync(kAllLanes, id[0], other) == id[1]) earlier = other;
  const bool leads0 = id[0] >= 0 && __ffs(like0) - 1 == lane;
  const bool leads1 = id[1] >= 0 && earlier < 0 && __ffs(like1) - 1 == lane;
  const unsigned leaders0 = __ballot_sync(kAllLanes, leads0);
  const unsigned leaders1 = __ballot_sync(kAllLanes, leads1);
  const unsigned before = (1u << lane) - 1u;
  if (leads0) routes.expert[__popc(leaders0 & before)] = static_cast<uint16_t>(id[0]);
  if (leads1) routes.expert[__popc(leaders0) + __popc(leaders1 & before)] = static_cast<uint16_t>(id[1]);
  if (lane == 0) {
    routes.places = __popc(leaders0) + __popc(leaders1);
    routes.big = 0;
    routes.tag = tag;
  }
  const unsigned like_earlier = __shfl_sync(kAllLanes, like0, max(earlier, 0));
  const int leader0 = __ffs(earlier >= 0 ? like_earlier : like0) - 1;
  const int leader1 = __ffs(like1) - 1;
  const int place0 = __popc(leaders0 & ((1u << (__ffs(like0) - 1)) - 1u));
  const int place1 = earlier >= 0 ? __popc(leaders0 & ((1u << leader0) - 1u))
                                  : __popc(leaders0) + __popc(leaders1 & ((1u << leader1) - 1u));
  routes.place[lane] = static_cast<int8_t>(id[0] < 0 ? -1 : place0);
  routes.place[lane + kWarp] = static_cast<int8_t>(id[1] < 0 ? -1 : place1);
  __syncwarp();
  if (lane < call.tokens)  // one lane a token, so that the weights of a pair that appears twice are added in order
    for (int at = 0; at < call.topk; ++at) {
      const int p = lane * call.topk + at;
      const int place = routes.place[p];
      if (place < 0) continue;
      int8_t& pair = routes.pair[place][lane];
      if (pair < 0) pair = static_cast<int8_t>(p);
      routes.weight[pair] += routes.given[p];
    }
}

}  // namespace
}  // namespace sparkforge
