// The table of stored names, applied to one tensor: which stored tensors, or parts of them, fill which part of it.
#pragma once

#include <string>
#include <vector>

#include "dtensor/checkpoint.h"
#include "internal/shard_segments.h"

namespace dtensor::files {

struct StoredPiece {
  std::string stored;                    // name there
  bool transposed;                       // the last two dimensions are exchanged there
  std::int64_t index;                    // of the tensor's first dimension, which is not there; -1: it is
  IndexRange stored_slice;               // in dimensions as stored
  std::vector<Segment> target_segments;  // what it fills: one range of each dimension of the tensor
  bool renamed = false;                  // all of the tensor, as it is: only the name is another

  // The tensor's dimension that the stored tensor's dimension `d` is.
  std::int64_t dim_of_tensor(std::int64_t d) const;
  std::int64_t stored_dims() const { return static_cast<std::int64_t>(target_segments.size()) - (index < 0 ? 0 : 1); }
  std::int64_t numel() const;
};

// Empty where no row names the tensor. Throws where the rows do not fit `sizes` or do not fill them.
std::vector<StoredPiece> stored_pieces(const std::string& name, at::IntArrayRef sizes,
                                       const StateDictKeyMapping& names);

}  // namespace dtensor::files
