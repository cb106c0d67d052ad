// Rows of a sharded dimension: which rank has which, also of a slice.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "placement/shard_map.h"
#include "placement/spec.h"

namespace dtensor {

// Mesh axes of more than one rank that shard any of `dims`; 0 for a null spec.
AxisMask shard_axes(const TensorSpec* spec, at::IntArrayRef dims);
AxisMask shard_axes(const TensorSpec* spec);  // any dimension

// The segments of each rank along `axes`, in the rank order of their communicator.
std::vector<Segments> segments_of_ranks(const TensorSpec& spec, std::int64_t dim, AxisMask axes);

// Adds a range to ascending segments without overlaps. It begins at or after the begin of the last segment.
void append_range(Segments& segments, const Segment& range);

// Row j of a slice is row start + j * step of the full tensor.
struct Slice {
  std::int64_t dim, start, step, length;

  // The rows of the slice among these rows of the full tensor.
  Segment within(const Segment& full) const;
  std::vector<Segments> within(const std::vector<Segments>& full) const;
  // The same rows as views of a rank's part of the full tensor, which has the rows `full`.
  std::vector<at::Tensor> views_of(const at::Tensor& local, const Segments& full) const;
  // The same rows as one tensor, which may be a view.
  at::Tensor rows_of(const at::Tensor& local, const Segments& full) const;
};

}  // namespace dtensor
