// Inputs of pipeline steps, and their loss.
#pragma once

#include <ATen/ops/mse_loss.h>

#include <vector>

#include "dtensor/pipeline.h"

namespace dtensor::test {

inline at::Tensor mean_loss(const pipeline::Tensors& outputs, const pipeline::Tensors& targets) {
  return at::mse_loss(outputs[0], targets[0]);
}

// The microbatches of a batch, as inputs of one tensor each.
inline std::vector<pipeline::Tensors> parts(const at::Tensor& batch, int count) {
  std::vector<pipeline::Tensors> result;
  for (const at::Tensor& part : pipeline::microbatches(batch, count)) result.push_back({part});
  return result;
}

}  // namespace dtensor::test
