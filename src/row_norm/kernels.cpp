// Calls of the operators of norms, and memory for their results.
#include "row_norm/kernels.h"

#include <ATen/ATen.h>
#include <c10/core/DispatchKey.h>
#include <torch/library.h>

#include "internal/library_operator.h"
#include "row_norm/layer_norm_arithmetic.h"

namespace dtensor::row_norm {
namespace {

Optional optional(const at::Tensor& t) { return t.defined() ? Optional(t) : std::nullopt; }

const auto& norm_rows() {
  static const auto op = library_operator<decltype(norm_rows_loop)>("dtensor::norm_rows");
  return op;
}

}  // namespace

bool has_kernels(const at::Tensor& x) {
  const auto key = c10::computeDispatchKey(std::nullopt, std::nullopt, x.device());
  return norm_rows().hasKernelForDispatchKey(key);
}

Normalized forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps, bool centers) {
  return norm_rows().call(x, optional(weight), optional(bias), eps, centers);
}

at::Tensor input_gradient(const Saved& s, const at::Tensor& grad) {
  static const auto op = library_operator<decltype(input_gradient_loop)>("dtensor::norm_rows_input_gradient");
  return op.call(grad, s.x, optional(s.mean), s.rstd, optional(s.weight));
}

at::Tensor parameter_gradients(const Saved& s, const at::Tensor& grad) {
  static const auto op = library_operator<decltype(parameter_gradients_loop)>("dtensor::norm_rows_parameter_gradients");
  return std::get<0>(op.call(grad, s.x, optional(s.mean), s.rstd));
}

Normalized empty_normalized(const at::Tensor& x, bool centers) {
  const auto stats = x.options().dtype(at::kFloat);
  at::Tensor mean = centers ? at::empty({x.size(0)}, stats) : at::Tensor();
  at::Tensor rstd = at::empty({x.size(0)}, stats);
  return {at::empty_like(x), std::move(mean), std::move(rstd)};
}

Sums empty_sums(const at::Tensor& x) {
  const auto options = x.options().dtype(at::kFloat);
  const auto rows = x.size(0), n = x.size(1);
  at::Tensor sums = rows > 0 ? at::empty({2, n}, options) : at::zeros({2, n}, options);
  return {std::move(sums), at::empty({2, (rows + kRowsOfChunk - 1) / kRowsOfChunk, n}, options)};
}

// Here and not in loops.cpp, since static archives drop objects that only register themselves.
TORCH_LIBRARY_IMPL(dtensor, CPU, m) {
  m.impl("norm_rows", norm_rows_loop);
  m.impl("norm_rows_input_gradient", input_gradient_loop);
  m.impl("norm_rows_parameter_gradients", parameter_gradients_loop);
}

TORCH_LIBRARY_IMPL(dtensor, Meta, m) {
  m.impl("norm_rows", [](const at::Tensor& x, const Optional&, const Optional&, double, bool centers) {
    return empty_normalized(x, centers);
  });
  m.impl("norm_rows_input_gradient", [](const at::Tensor&, const at::Tensor& x, const Optional&, const at::Tensor&,
                                        const Optional&) { return at::empty_like(x); });
  m.impl("norm_rows_parameter_gradients",
         [](const at::Tensor&, const at::Tensor& x, const Optional&, const at::Tensor&) { return empty_sums(x); });
}

}  // namespace dtensor::row_norm
