// How tokens and classes of a loss lie on a mesh, and this rank's part of the classes.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dtensor/mesh.h"
#include "dtensor/placement.h"
#include "dtensor/tensor.h"

namespace dtensor {

struct ClassShard {
  DeviceMesh mesh = {};  // none: one device
  std::vector<std::int64_t> class_axes = {}, token_axes = {};
  Placements tokens = {};           // of a tensor [...]: shards over tokens, Replicate elsewhere
  Placements classes;               // of a tensor [classes]
  std::int64_t count = 0;           // classes
  std::int64_t first = 0, own = 0;  // this rank's run of them

  bool is_outside_mesh() const { return mesh && !mesh.is_member(); }  // this rank has no part of the loss
  // In place, over the axes that split the classes (tokens).
  void reduce_classes(const at::Tensor& local, ReduceOp op) const;
  void reduce_tokens(const at::Tensor& local, ReduceOp op) const;
};

// `values`: [..., classes] or [..., features] with its last dimension whole or sharded; `class_placements`: of the
// classes. An axis may split tokens or classes, not both.
ClassShard class_shard(const DeviceMesh& mesh, std::int64_t count, const Placements& tokens,
                       const Placements& class_placements);

// `tensor` as a DTensor in these placements (plain: Replicate); differentiable.
at::Tensor to_placements(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements);

at::Tensor local_part(const at::Tensor& tensor);  // of a DTensor, or itself; not differentiable

}  // namespace dtensor
