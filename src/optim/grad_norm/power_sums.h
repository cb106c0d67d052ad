// Sums of p-th powers of regular tensors, for norms.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <vector>

namespace dtensor::optim {

// Maximum that propagates NaN.
inline double max_propagate_nan(double a, double b) { return b > a || std::isnan(b) ? b : a; }

// For each local tensor the sum of |x|^p, or the largest |x| for p = infinity; 0 for undefined or empty tensors.
// Propagates NaN. Returns a 1-D double tensor on `device`. Uses a loop for small CPU tensors, because an operator call
// costs more than the sum, and one foreach operator for others.
at::Tensor power_sums(const std::vector<at::Tensor>& locals, double p, c10::Device device);

}  // namespace dtensor::optim
