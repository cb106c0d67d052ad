// The loops below the permutations: on the CPU by hand, elsewhere from ATen's operators. No autograd here.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>

#include "moe/dispatch/permute.h"

namespace dtensor::moe {

// What a library for another device brings: the same loops over contiguous tensors of that device. Without it, ATen's
// operators do.
struct RowKernels {
  void (*permute)(const at::Tensor& x, const at::Tensor& position, const at::Tensor& out) = nullptr;
  void (*unpermute)(const at::Tensor& rows, const at::Tensor& position, const at::Tensor& weight, const at::Tensor& out,
                    bool adds) = nullptr;
  void (*unpermute_backward)(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& position,
                             const at::Tensor& weight, const at::Tensor& d_rows, const at::Tensor& d_weight) = nullptr;
  void (*count)(const at::Tensor& ids, const at::Tensor& counts) = nullptr;
};
DTENSOR_API void register_row_kernels(c10::DeviceType device, const RowKernels& loops);

// Whether experts have equally many rows, so that one batched product serves them.
inline bool all_equal(at::IntArrayRef rows) {
  return std::all_of(rows.begin(), rows.end(), [&](auto r) { return r == rows[0]; });
}

// at::_grouped_mm multiplies along the rows for the gradient of the weights: groups begin at multiples of 16 bytes.
inline std::int64_t row_alignment(const at::Tensor& x) { return 16 / static_cast<std::int64_t>(x.element_size()); }

at::Tensor count_kernel(const at::Tensor& ids, std::int64_t bins);
// `kept`: the sum of `counts`; -1: not known.
SortedBins sort_kernel(const at::Tensor& ids, const at::Tensor& counts, std::int64_t kept);
at::Tensor permute_kernel(const at::Tensor& x, const at::Tensor& position, std::int64_t kept);
at::Tensor unpermute_kernel(const at::Tensor& rows, const at::Tensor& position, const at::Tensor& weight);
// Adds to `base`, contiguous.
void add_combined_kernel(const at::Tensor& base, const at::Tensor& rows, const at::Tensor& position,
                         const at::Tensor& weight);
// The gradients of rows and weight.
std::pair<at::Tensor, at::Tensor> unpermute_backward_kernel(const at::Tensor& grad, const at::Tensor& rows,
                                                            const at::Tensor& position, const at::Tensor& weight);

}  // namespace dtensor::moe
