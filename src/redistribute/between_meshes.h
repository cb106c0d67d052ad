// Tensors on their way from one mesh to another, whatever ranks these share: each rank receives the elements that it
// wants and lacks, each once, all tensors in one all-to-all.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "placement/spec.h"

namespace dtensor {

// Differs in mesh and placements; neither is Partial.
struct CrossMeshMove {
  SpecPtr from, to;
  at::Tensor local;  // undefined outside the mesh of `from`
};

// The local tensors, contiguous; undefined outside the mesh of `to`. Collective over the ranks of all meshes in the
// list, which must be of one world; ranks in none of them need not call.
std::vector<at::Tensor> move_between_meshes(const std::vector<CrossMeshMove>& moves);

}  // namespace dtensor
