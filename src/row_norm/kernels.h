// Layer norm and RMS norm of half-precision rows with float parameters, which ATen's CUDA kernels do not accept: the
// operators dtensor::norm_rows, norm_rows_input_gradient and norm_rows_parameter_gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "dtensor/export.h"

namespace dtensor::row_norm {

// Operands are contiguous: x, y and gradients of x are [rows, n] in a half type; all others are float. `weight` and
// `bias` are [n] or undefined: ones and zeros. `mean` and `rstd` are [rows]. RMS norm subtracts no mean: `mean` is
// undefined.
struct Saved {
  at::Tensor x, mean, rstd, weight;
};

// Whether the device has kernels of the operators.
bool has_kernels(const at::Tensor& x);

using Optional = std::optional<at::Tensor>;
using Normalized = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // y, mean, rstd

// Calls of the operators. `centers`: layer norm.
Normalized forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps, bool centers);
at::Tensor input_gradient(const Saved& saved, const at::Tensor& grad);
at::Tensor parameter_gradients(const Saved& saved, const at::Tensor& grad);  // [2, n]: of grad * xhat, and of grad

// For the kernels of a device: memory for the results. The second result of norm_rows_parameter_gradients is its
// workspace [2, chunks, n], so that a dry run counts it: the sums of each chunk of rows.
DTENSOR_API Normalized empty_normalized(const at::Tensor& x, bool centers);
using Sums = std::tuple<at::Tensor, at::Tensor>;
DTENSOR_API Sums empty_sums(const at::Tensor& x);

// The kernels of the CPU.
Normalized norm_rows_loop(const at::Tensor& x, const Optional& weight, const Optional& bias, double eps, bool centers);
at::Tensor input_gradient_loop(const at::Tensor& grad, const at::Tensor& x, const Optional& mean,
                               const at::Tensor& rstd, const Optional& weight);
Sums parameter_gradients_loop(const at::Tensor& grad, const at::Tensor& x, const Optional& mean,
                              const at::Tensor& rstd);

}  // namespace dtensor::row_norm
