// Named references to the tensors of a model.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "dtensor/export.h"

namespace dtensor {

// Full names ("h.0.attn.q_proj.weight") and pointers to the tensors, so that tensors can be replaced. A tied tensor is
// listed under each of its names.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor*>>;

}  // namespace dtensor
