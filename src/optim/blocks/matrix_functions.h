// Matrix functions of preconditioned optimizers, for regular tensors.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::optim {

// (factor + eps I)^(-1 / (2 order)) by eigenvalue decomposition. If the smallest eigenvalue is below eps, all are
// shifted so that it equals eps.
at::Tensor inverse_root(const at::Tensor& factor, std::int64_t order, double eps);

// The tensor as a matrix with dimension `dim` as rows and all others as columns.
at::Tensor unfold(const at::Tensor& tensor, std::int64_t dim);
// Applies `matrix` along `dim`.
at::Tensor apply_along(const at::Tensor& matrix, const at::Tensor& tensor, std::int64_t dim);

// Newton-Schulz iterations toward the orthogonal factor: quintic with coefficients (3.4445, -4.7750, 2.0315).
at::Tensor newton_schulz(const at::Tensor& matrix, std::int64_t iterations);

}  // namespace dtensor::optim
