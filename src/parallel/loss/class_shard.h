// Layout of the tokens and classes of a loss on a mesh, and this rank's range of classes.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dtensor/mesh.h"
#include "dtensor/placement.h"
#include "dtensor/tensor.h"

namespace dtensor {

struct ClassShard {
  DeviceMesh mesh = {};  // undefined: one device
  std::vector<std::int64_t> class_axes = {}, token_axes = {};
  Placements tokens = {};           // of a tensor [...]: Shard on the token axes, otherwise Replicate
  Placements classes;               // of a tensor [classes]
  std::int64_t count = 0;           // number of classes
  std::int64_t first = 0, own = 0;  // this rank's range of classes

  bool is_outside_mesh() const { return mesh && !mesh.is_member(); }  // no local loss on this rank
  // In place, over the axes that split the classes, or the tokens.
  void reduce_classes(const at::Tensor& local, ReduceOp op) const;
  void reduce_tokens(const at::Tensor& local, ReduceOp op) const;
};

// `count` classes with `class_placements`, tokens with placements `tokens`. An axis may split tokens or classes, not
// both.
ClassShard class_shard(const DeviceMesh& mesh, std::int64_t count, const Placements& tokens,
                       const Placements& class_placements);

// `tensor` as a DTensor in these placements (a regular tensor counts as Replicate); differentiable.
at::Tensor to_placements(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements);

at::Tensor local_part(const at::Tensor& tensor);  // local tensor, or the regular tensor itself; not differentiable

}  // namespace dtensor
