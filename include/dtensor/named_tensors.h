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

// Each of them once, where it stands first: lists of parameters may have a tied one under each of its names.
DTENSOR_API std::vector<at::Tensor> each_once(at::TensorList tensors);

// Whoever puts another tensor in the place of a model's parameter says so: an optimizer that holds the former one would
// train nothing.
DTENSOR_API void note_replaced(const at::Tensor& former);
DTENSOR_API void note_replaced(const at::Tensor& former, const at::Tensor& by);
DTENSOR_API bool was_replaced(const at::Tensor& tensor);
// Where one name of a tied tensor was replaced before and another still holds the former one, both hold what replaced
// it: models are placed piece by piece. An error where two names got one each.
DTENSOR_API void tie_again(const NamedTensors& tensors);

}  // namespace dtensor
