// Random operands of the kernels of layer norm and RMS norm (row_norm/kernels.h).
#pragma once

#include <torch/library.h>

#include <atomic>

#include "row_norm/kernels.h"
#include "support/ranks.h"

namespace dtensor::test {

struct NormCase {
  at::Tensor x, weight, bias, grad;
  bool centers = false;  // Else RMS norm.
};

struct NormResults {
  at::Tensor y, mean, rstd, to_x, sums;
};

inline NormResults results_of(const NormCase& c) {
  const auto [y, mean, rstd] = row_norm::forward(c.x, c.weight, c.bias, 1e-5, c.centers);
  const row_norm::Saved saved{c.x, mean, rstd, c.weight};
  return {y, mean, rstd, row_norm::input_gradient(saved, c.grad), row_norm::parameter_gradients(saved, c.grad)};
}

// Kernels of a device whose memory is the host's during its lifetime: those of the CPU. They count their calls.
struct CountedNormKernels {
  explicit CountedNormKernels(c10::DispatchKey device)
      : library(torch::Library::IMPL, "dtensor", device, __FILE__, __LINE__) {
    forward_calls = backward_calls = 0;
    library.impl("norm_rows", [](const at::Tensor& x, const row_norm::Optional& weight, const row_norm::Optional& bias,
                                 double eps, bool centers) {
      ++forward_calls;
      return row_norm::norm_rows_loop(x, weight, bias, eps, centers);
    });
    library.impl("norm_rows_input_gradient",
                 [](const at::Tensor& grad, const at::Tensor& x, const row_norm::Optional& mean, const at::Tensor& rstd,
                    const row_norm::Optional& weight) {
                   ++backward_calls;
                   return row_norm::input_gradient_loop(grad, x, mean, rstd, weight);
                 });
    library.impl("norm_rows_parameter_gradients", row_norm::parameter_gradients_loop);
  }
  torch::Library library;
  static inline std::atomic<int> forward_calls, backward_calls;
};

inline NormCase draw_norm(Draw& draw, at::ScalarType type) {
  const auto rows = draw.coin() ? draw.integer(0, 5) : draw.integer(120, 300);
  const auto n = draw.coin() ? draw.integer(1, 40) : draw.integer(2000, 2100);
  NormCase c;
  c.x = (draw.normal({rows, n}) * 2 + 1).to(type);
  c.centers = draw.coin();
  if (draw.coin()) c.weight = draw.normal({n}, at::kFloat);
  if (draw.coin()) c.bias = draw.normal({n}, at::kFloat);
  c.grad = draw.normal({rows, n}).to(type);
  return c;
}

}  // namespace dtensor::test
