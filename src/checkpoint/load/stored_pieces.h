// Applies a StateDictKeyMapping to one tensor: which slices of stored tensors fill which part of it.
#pragma once

#include <string>
#include <vector>

#include "dtensor/checkpoint.h"
#include "internal/shard_segments.h"

namespace dtensor::files {

struct StoredPiece {
  std::string stored;                    // name of the stored tensor
  bool transposed;                       // the stored tensor has its last two dimensions transposed
  std::int64_t index;                    // index in the tensor's first dimension, for stacks; -1: not a stack
  StateDictKeyRule::Range stored_slice;  // in stored dimensions
  std::vector<Segment> target_segments;  // the part to fill: one range for each dimension of the tensor
  bool renamed = false;                  // the stored tensor equals the tensor except for its name

  // The tensor's dimension for dimension `d` of the stored tensor.
  std::int64_t dim_of_tensor(std::int64_t d) const;
  std::int64_t stored_dims() const { return static_cast<std::int64_t>(target_segments.size()) - (index < 0 ? 0 : 1); }
  std::int64_t numel() const;
};

// Empty if no row matches. Throws if the rows do not match `sizes` or do not fill the tensor.
std::vector<StoredPiece> stored_pieces(const std::string& name, at::IntArrayRef sizes,
                                       const StateDictKeyMapping& names);

// The stored name, or the model's name of a stored one, by the first row that matches and only renames; unchanged if
// there is none.
std::string renamed(const std::string& name, const StateDictKeyMapping& names, bool to_stored);

}  // namespace dtensor::files
