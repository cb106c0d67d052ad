// Products in float8 for training.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "dtensor/export.h"

namespace dtensor::nn {

// x [..., in] times weight [out, in] transposed, as at::linear, in the dtype of x. Operands are rounded to e4m3 and
// gradients to e5m2 before each of the three products (Micikevicius et al. 2022, arXiv:2209.05433). Each tensor has one
// scale, the smallest power of two by which its largest magnitude on all ranks fits the format, so all layouts round
// alike.
// Differentiable once. Throws c10::Error for float64, and unless `in` and `out` are multiples of 16. GPUs also need a
// multiple of 16 rows on each rank.
DTENSOR_API at::Tensor float8_linear(const at::Tensor& x, const at::Tensor& weight);

// While open on this thread, Linear modules and the experts of MixtureOfExperts whose sizes are multiples of 16
// multiply in float8. Their parameters and gradients keep their dtypes.
class DTENSOR_API Float8Scope {
 public:
  Float8Scope();
  // Whether one is open on this thread.
  static bool current();

 private:
  std::shared_ptr<const void> scope_;
};

}  // namespace dtensor::nn
