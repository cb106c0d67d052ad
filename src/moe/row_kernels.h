// The loops below the permutations: on the CPU by hand, elsewhere from ATen's operators. No autograd here.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "dtensor/moe/exchange.h"

namespace dtensor::moe {

at::Tensor count_kernel(const at::Tensor& ids, std::int64_t bins);  // CPU
SortedBins sort_kernel(const at::Tensor& ids, std::int64_t bins);
at::Tensor expand_kernel(const at::Tensor& x, const at::Tensor& position, std::int64_t kept);
at::Tensor combine_kernel(const at::Tensor& rows, const at::Tensor& position, const at::Tensor& weight);
// // Adds to `base`, contiguous.
void add_combined_kernel(const at::Tensor& base, const at::Tensor& rows, const at::Tensor& position,
                         const at::Tensor& weight);
// The gradients of rows and weight.
std::pair<at::Tensor, at::Tensor> combine_backward_kernel(const at::Tensor& grad, const at::Tensor& rows,
                                                          const at::Tensor& position, const at::Tensor& weight);

}  // namespace dtensor::moe
