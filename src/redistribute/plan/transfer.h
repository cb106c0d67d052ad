// What one rank sends and receives when a tensor moves between meshes. The rank may be in one of them, in both, or in
// none. Every rank computes the same plan without communication.
#pragma once

#include <vector>

#include "redistribute/plan/region.h"

namespace dtensor {

struct Transfer {
  std::int64_t peer;  // world rank
  Region part;        // not empty
};

// A rank receives the elements that it needs and does not have, each once. Between two ranks, the lists of sender and
// receiver have the parts in the same order.
struct TransferPlan {
  std::vector<Transfer> sends, receives;
  Region held, wanted;  // of this rank, before and after; without dimensions outside the mesh
};

struct MeshPlacements {
  const MeshLayout& mesh;
  const Placements& placements;  // none of them Partial
};

// Replicas share the sending: each receiver starts with another replica, and parts of more than kSharedBytes are split
// among several.
TransferPlan plan_transfer(at::IntArrayRef sizes, std::int64_t itemsize, const MeshPlacements& from,
                           const MeshPlacements& to, std::int64_t world_rank);

}  // namespace dtensor
