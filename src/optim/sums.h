// Sums of p-th powers of plain tensors, for norms.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace dtensor::optim {

// Collects local tensors; the value is the sum of |x|^p over all of them, or the largest |x| for p = infinity, in
// double. NaN wins. Small CPU tensors are summed as they come, since an operator call costs more than the sum; the
// others by one list operator.
class PowerSum {
 public:
  explicit PowerSum(double p) : p_(p) {}
  void add(const at::Tensor& local);
  // A 0-dim double on `device`.
  at::Tensor value(c10::Device device) const;

 private:
  void append(const std::vector<at::Tensor>& locals, std::optional<at::ScalarType> dtype,
              std::vector<at::Tensor>& norms) const;

  double p_, small_ = 0;
  std::vector<at::Tensor> halves_, others_;
};

}  // namespace dtensor::optim
