// Permutations of rows and counts without autograd: calls of the operators dtensor::permute_rows, unpermute_rows,
// add_unpermuted_rows_, unpermute_rows_backward and count_bins, whose operands are contiguous.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>

#include "moe/dispatch/permute.h"
#include "moe/experts/experts.h"

namespace dtensor::moe {

// Whether all experts have the same number of rows, so that one batched product is possible.
inline bool all_equal(at::IntArrayRef rows) {
  return std::all_of(rows.begin(), rows.end(), [&](auto r) { return r == rows[0]; });
}

// Whether at::_grouped_mm has a kernel for bfloat16 on the device of x, so that it reads no counts.
bool multiplies_groups(const at::Tensor& x);
// Whether ExpertBackend::automatic multiplies by at::_grouped_mm, if the host does not know that counts are equal. Its
// kernel takes bfloat16 and rows of a multiple of 16 bytes.
bool prefers_grouped(const at::Tensor& x, const ExpertWeights& weights, const ExpertOptions& options);

at::Tensor count_kernel(const at::Tensor& ids, std::int64_t bins);
// `kept`: the sum of `counts`; -1: unknown.
SortedBins sort_kernel(const at::Tensor& ids, const at::Tensor& counts, std::int64_t kept);
at::Tensor permute_kernel(const at::Tensor& x, const at::Tensor& position, std::int64_t kept);
at::Tensor unpermute_kernel(const at::Tensor& rows, const at::Tensor& position, const at::Tensor& weight);
// Adds to `base`, which is contiguous.
void add_combined_kernel(const at::Tensor& base, const at::Tensor& rows, const at::Tensor& position,
                         const at::Tensor& weight);
// The gradients of rows and weight.
std::pair<at::Tensor, at::Tensor> unpermute_backward_kernel(const at::Tensor& grad, const at::Tensor& rows,
                                                            const at::Tensor& position, const at::Tensor& weight);

}  // namespace dtensor::moe
