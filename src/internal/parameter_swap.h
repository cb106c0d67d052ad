// Lists of a model's tensors: each tensor once, and parameters that another tensor replaced.
#pragma once

#include <vector>

#include "dtensor/export.h"
#include "dtensor/named_tensors.h"

namespace dtensor {

// Each of them once, where it stands first: lists of parameters may have a tied one under each of its names.
DTENSOR_API std::vector<at::Tensor> unique_tensors(at::TensorList tensors);

// Whoever puts another tensor in the place of a model's parameter says so: an optimizer that holds the former one would
// train nothing.
DTENSOR_API void record_parameter_swap(const at::Tensor& former);
DTENSOR_API void record_parameter_swap(const at::Tensor& former, const at::Tensor& by);
DTENSOR_API bool is_swapped_out(const at::Tensor& tensor);

// Where one name of a tied tensor was replaced before and another still holds the former one, both hold what replaced
// it: models are placed piece by piece. An error where two names got one each.
DTENSOR_API void retie_shared_parameters(const NamedTensors& tensors);

}  // namespace dtensor
