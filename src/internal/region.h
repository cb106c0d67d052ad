// Parts of a global tensor as products of ranges, and which of them a rank sends and receives. Values only.
#pragma once

#include <ATen/core/DimVector.h>

#include <vector>

#include "internal/shard_segments.h"

namespace dtensor {

// Global ranges for each tensor dimension; the region is their product.
struct Region {
  c10::SmallVector<Segments, 4> dims;

  at::DimVector sizes() const;
  std::int64_t numel() const;
};

Region intersection(const Region& a, const Region& b);

// What a tensor of these sizes stores at `coordinate`.
Region shard_region(c10::IntArrayRef sizes, const Placements& placements, c10::IntArrayRef mesh_shape,
                    c10::IntArrayRef coordinate);

// A part that is sent to a peer, or received from it. Peers are members of a communicator unless stated otherwise.
struct Transfer {
  std::int64_t peer;
  Region part;
};

// The transfers of one rank, those to itself included. Between two ranks, the lists of sender and receiver have the
// parts in the same order.
struct TransferPlan {
  std::vector<Transfer> sends, receives;
  Region held, wanted;  // of this rank, before and after; without dimensions where it has none
};

// What `own` has in common with the region of each member; one entry per member, even if empty.
std::vector<Transfer> overlaps(const Region& own, const std::vector<Region>& of_members);

}  // namespace dtensor
