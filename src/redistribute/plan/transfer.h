// What one rank sends and receives when a tensor moves between meshes. The rank may be in one of them, in both, or in
// none. Every rank computes the same plan without communication.
#pragma once

#include <vector>

#include "redistribute/plan/region.h"

namespace dtensor {

struct MeshPlacements {
  const MeshLayout& mesh;
  const Placements& placements;  // none of them Partial
};

// A rank receives the elements that it needs and does not have, each once. Peers are world ranks, and no part is empty.
// Replicas share the sending: each receiver starts with another replica, and parts of more than kSharedBytes are split
// among several.
TransferPlan plan_transfer(at::IntArrayRef sizes, std::int64_t itemsize, const MeshPlacements& from,
                           const MeshPlacements& to, std::int64_t world_rank);

}  // namespace dtensor
