// Sharding of one parameter: its placements, the layout of its gathered local tensor, and the piece of each rank of the
// shard axis.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "dtensor/fully_shard.h"

namespace dtensor::fsdp {

using Shape = std::vector<std::int64_t>;

// The shard axes of a mesh, from the left, and its replicate axis; -1: no replicas.
struct Axes {
  Shape shard;
  std::int64_t replicate = -1;

  bool splits(std::int64_t axis) const { return std::find(shard.begin(), shard.end(), axis) != shard.end(); }
};
Axes find_axes(const DeviceMesh& mesh, const FsdpOptions& options);

// Whether a mesh has only ranks of `mesh`, in another arrangement than a slice.
bool has_own_mesh(const DeviceMesh& own, const DeviceMesh& mesh);

// A parameter's placements as placements on `mesh`. Throws with its name if its mesh is not a slice of `mesh`.
Placements placements_on_mesh(const std::string& name, const DTensor& tensor, const DeviceMesh& mesh);

// Adds the shard axes, which split what the other axes leave of dimension `dim`. -1: Replicate.
Placements add_shard(Placements placements, const DeviceMesh& mesh, const Axes& axes, std::int64_t dim);

// Sizes of the axes that shard a parameter, and the number of their ranks.
Shape shard_shape(const DeviceMesh& mesh, const Axes& axes);
std::int64_t shard_ranks(const DeviceMesh& mesh, const Axes& axes);

struct ShardRange {
  std::int64_t offset, length;
};

struct ParameterLayout {
  Shape sizes, strides;  // of the gathered local tensor, dense, in the parameter's order of dimensions
  std::int64_t dim = 0;
  std::vector<ShardRange> pieces;  // along `dim`, one per rank that splits it
  std::int64_t numel() const;

  // The dense layout of one rank's piece.
  ParameterLayout shard_layout(std::size_t rank) const;
  // View of the piece of one rank in a gathered local tensor (or in an unreduced gradient).
  at::Tensor shard_view(const at::Tensor& gathered, std::size_t rank) const;
};
// A view of `base`'s memory, created without the dispatcher. `offset`: in elements of `dtype` from base's first byte.
at::Tensor view_of(const at::Tensor& base, at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides,
                   std::int64_t offset);

// `full`: sizes of the local tensor before the shard axes split it. `order`: global strides. `ranks`: sizes of the
// shard axes, which split one after the other into chunks, or into the sizes that `shard` lists.
ParameterLayout make_parameter_layout(at::IntArrayRef full, at::IntArrayRef order, const Placement& shard,
                                      at::IntArrayRef ranks);
// An unsharded layout.
ParameterLayout make_parameter_layout(at::IntArrayRef full, at::IntArrayRef order);

}  // namespace dtensor::fsdp
