// Layer norm and RMS norm of half-precision rows with float parameters, which ATen's CUDA kernels do not accept. Loops
// on the CPU, registered kernels on other devices, or ATen operators on a float copy.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/export.h"

namespace dtensor::row_norm {

// Operands are contiguous: x, y and gradients of x are [rows, n] in a half type; all others are float. `weight` and
// `bias` are [n] or undefined: ones and zeros. `mean` and `rstd` have an element for each row. RMS norm subtracts no
// mean: `mean` is undefined.
struct Saved {
  at::Tensor x, mean, rstd, weight;
};

struct Kernels {
  void (*forward)(const Saved& saved, const at::Tensor& bias, double eps, const at::Tensor& y) = nullptr;
  void (*input_gradient)(const Saved& saved, const at::Tensor& grad, const at::Tensor& result) = nullptr;
  // Adds each chunk of rows into `partial` [2, chunks, n] and then into `sums` [2, n]: of grad * xhat, and of grad.
  void (*parameter_gradients)(const Saved& saved, const at::Tensor& grad, const at::Tensor& partial,
                              const at::Tensor& sums) = nullptr;
};
DTENSOR_API void register_kernels(c10::DeviceType device, const Kernels& kernels);
// Of the tensor's device, for the CPU and in a dry run too; null if none is registered.
const Kernels* kernels_of(const at::Tensor& x);
const Kernels& cpu_loops();

// The three steps with memory for their results. Writes saved.mean and saved.rstd.
at::Tensor forward(const Kernels& kernels, const Saved& saved, const at::Tensor& bias, double eps);
at::Tensor input_gradient(const Kernels& kernels, const Saved& saved, const at::Tensor& grad);
at::Tensor parameter_gradients(const Kernels& kernels, const Saved& saved, const at::Tensor& grad);  // [2, n]

}  // namespace dtensor::row_norm
