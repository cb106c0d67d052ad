// Moves tensors between meshes that may share ranks. Each rank receives the elements that it needs and does not have,
// each once; all tensors use one all-to-all.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "placement/spec.h"

namespace dtensor {

// The specs differ in mesh and placements; neither is Partial.
struct CrossMeshMove {
  SpecPtr from, to;
  at::Tensor local;  // undefined outside the mesh of `from`
};

// Returns the local tensors, contiguous; undefined outside the mesh of `to`. Collective over the ranks of all meshes
// in the list, which must belong to one world; other ranks need not call it.
std::vector<at::Tensor> move_between_meshes(const std::vector<CrossMeshMove>& moves);

}  // namespace dtensor
