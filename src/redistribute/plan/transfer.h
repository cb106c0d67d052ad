// What one rank sends and receives when a tensor moves from one mesh to another: ranks in one of them, in both, or in
// none. Pure: layouts in, parts out, and every rank plans alike without asking.
#pragma once

#include <vector>

#include "redistribute/plan/region.h"

namespace dtensor {

struct Transfer {
  std::int64_t peer;  // world rank
  Region part;        // not empty
};

// A rank receives the elements that it wants and does not hold, each once. Between two ranks, the sender's list has
// the parts in the order of the receiver's.
struct TransferPlan {
  std::vector<Transfer> sends, receives;
  Region held, wanted;  // by this rank, before and after; without dimensions where it is in no such mesh
};

struct MeshPlacements {
  const MeshLayout& mesh;
  const Placements& placements;  // none of them Partial
};

// Replicas share out what they send: each rank begins with another of them, and parts of more than kSharedBytes are cut
// among several.
TransferPlan plan_transfer(at::IntArrayRef sizes, std::int64_t itemsize, const MeshPlacements& from,
                           const MeshPlacements& to, std::int64_t world_rank);

}  // namespace dtensor
