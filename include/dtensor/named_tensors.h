// A model as functions on models see it.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "dtensor/export.h"

namespace dtensor {

// Full names ("h.0.attn.q_proj.weight") and where each tensor is kept, so that it can be exchanged. A tied tensor is
// listed under each of its names.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor*>>;

}  // namespace dtensor
