// Matrix functions of the preconditioned optimizers, on plain tensors.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::optim {

// (factor + eps I)^(-1 / (2 order)) by eigenvalues; where the least is below eps, all are shifted up to it.
at::Tensor inverse_root(const at::Tensor& factor, std::int64_t order, double eps);

// The tensor with dimension `dim` as rows, all others as columns.
at::Tensor unfold(const at::Tensor& tensor, std::int64_t dim);
// matrix applied along `dim`.
at::Tensor apply_along(const at::Tensor& matrix, const at::Tensor& tensor, std::int64_t dim);

// Newton-Schulz iterations towards the orthogonal factor, quintic with coefficients (3.4445, -4.7750, 2.0315).
at::Tensor newton_schulz(const at::Tensor& matrix, std::int64_t iterations);

}  // namespace dtensor::optim
