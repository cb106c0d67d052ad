// Where the parts of one parameter lie: how it is placed, how its gathered local tensor looks, and which of it each
// rank of the shard axis holds.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "dtensor/fully_shard.h"

namespace dtensor::fsdp {

using Shape = std::vector<std::int64_t>;

// The axes of a mesh in the eyes of fully_shard: those that split parameters, from the left; -1: no replicas.
struct Axes {
  Shape shard;
  std::int64_t replicate = -1;

  bool splits(std::int64_t axis) const { return std::find(shard.begin(), shard.end(), axis) != shard.end(); }
};
Axes find_axes(const DeviceMesh& mesh, const FsdpOptions& options);

// Whether a parameter on `own` is on ranks of `mesh` in another arrangement: no slice of it, but some of its ranks.
bool has_own_mesh(const DeviceMesh& own, const DeviceMesh& mesh);

// A parameter's placements as placements on `mesh`. Throws, naming it, where its mesh is no slice of that.
Placements lift_placements(const std::string& name, const DTensor& tensor, const DeviceMesh& mesh);

// With the shard axes added: they split what the other axes leave of dimension `dim`. -1: stays whole.
Placements add_shard(Placements placements, const DeviceMesh& mesh, const Axes& axes, std::int64_t dim);

// How many ranks split a parameter, and their axes' sizes.
Shape shard_shape(const DeviceMesh& mesh, const Axes& axes);
std::int64_t shard_ranks(const DeviceMesh& mesh, const Axes& axes);

struct ShardRange {
  std::int64_t offset, length;
};

struct ParameterLayout {
  Shape sizes, strides;  // of the local tensor once gathered, dense, in the parameter's order of dimensions
  std::int64_t dim = 0;
  std::vector<ShardRange> pieces;  // along `dim`, of each rank that splits it
  std::int64_t numel() const;

  // Dense by itself, in one piece.
  ParameterLayout shard_layout(std::size_t rank) const;
  // Views of a gathered local tensor (or of an unreduced gradient), one for each rank that splits it.
  at::Tensor shard_view(const at::Tensor& gathered, std::size_t rank) const;
};
// A view of `base`'s memory, made without the dispatcher. `offset`: in elements of `dtype` from base's first byte.
at::Tensor view_of(const at::Tensor& base, at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides,
                   std::int64_t offset);

// `whole`: the local tensor without the shard axes. `order`: global strides. `ranks`: of each shard axis, which split
// in turn. `shard_sizes`: sizes of the pieces, of one axis; chunks if empty.
ParameterLayout make_parameter_layout(at::IntArrayRef full, at::IntArrayRef order, std::int64_t dim,
                                      at::IntArrayRef ranks, at::IntArrayRef shard_sizes = {});
// In one piece.
ParameterLayout make_parameter_layout(at::IntArrayRef full, at::IntArrayRef order);

}  // namespace dtensor::fsdp
