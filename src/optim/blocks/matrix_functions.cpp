// Inverse roots, unfolding and Newton-Schulz iterations.
#include "optim/blocks/matrix_functions.h"

#include <ATen/ATen.h>

namespace dtensor::optim {

at::Tensor inverse_root(const at::Tensor& factor, std::int64_t order, double eps) {
  const at::Tensor shifted = factor + eps * at::eye(factor.size(0), factor.options());
  auto [values, vectors] = at::linalg_eigh(shifted);
  const at::Tensor least = values.min();
  values = at::where(least < eps, values - least + eps, values);
  return (vectors * values.pow(-1.0 / static_cast<double>(2 * order)).unsqueeze(0)).mm(vectors.t());
}

at::Tensor unfold(const at::Tensor& tensor, std::int64_t dim) {
  return tensor.movedim(dim, 0).reshape({tensor.size(dim), -1});
}

at::Tensor apply_along(const at::Tensor& matrix, const at::Tensor& tensor, std::int64_t dim) {
  const auto moved = tensor.movedim(dim, 0);
  return matrix.mm(moved.reshape({tensor.size(dim), -1})).view(moved.sizes()).movedim(0, dim);
}

at::Tensor newton_schulz(const at::Tensor& matrix, std::int64_t iterations) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = tall ? matrix.t() : matrix;
  x = x / x.norm().clamp_min(1e-7);
  for (std::int64_t i = 0; i < iterations; ++i) {
    const at::Tensor gram = x.mm(x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a, 1);
  }
  return tall ? x.t() : x;
}

}  // namespace dtensor::optim
