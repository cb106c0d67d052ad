// Sums of p-th powers of plain tensors, for norms.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <vector>

namespace dtensor::optim {

// NaN wins.
inline double max_propagate_nan(double a, double b) { return b > a || std::isnan(b) ? b : a; }

// Of each local tensor the sum of |x|^p, or the largest |x| for p = infinity; 0 of an undefined or empty one. A 1-D
// double on `device`. NaN wins. Small CPU tensors are summed by a loop, since an operator call costs more than the sum;
// the others by one list operator.
at::Tensor power_sums(const std::vector<at::Tensor>& locals, double p, c10::Device device);

}  // namespace dtensor::optim
