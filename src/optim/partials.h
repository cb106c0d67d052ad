// Sums Partial tensors of a list, many in one collective.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace dtensor::optim {

// The tensors, with those that are Partial replaced by reduced ones (Replicate on those axes). One all-reduce for each
// mesh axis, operation and dtype among them.
std::vector<at::Tensor> without_partials(std::vector<at::Tensor> tensors);

}  // namespace dtensor::optim
