// Activation checkpointing: what a part of the model computes in forward is dropped and computed again in backward.
// Memory against time; the gradients are the same to the last bit, random numbers included.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "dtensor/export.h"

namespace dtensor {

// How checkpoint() trades memory for time.
struct CheckpointOptions {
  // Results of these operators ("aten::mm", all overloads) on DTensors are kept, the rest is computed again. A kept
  // result is neither computed nor communicated a second time.
  std::set<std::string> keep = {};
};

// A segment of a model: tensors in, tensors out.
using CheckpointedFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// fn(inputs), of which only the inputs (and what options.keep names) stay until backward. fn runs again there: it may
// draw random numbers of DTensors on any mesh (the same ones), and use parameters that it captures, but must not change
// anything else. Gradients of captured parameters are accumulated once. An input that is changed in place before
// backward is an error. Segments nest. Not differentiable twice, and autograd::grad finds gradients of the inputs only:
// errors, both. (backward with `inputs` that none of the segment's lead to does not run it: a parameter that it alone
// captures stays without a gradient, as what is no part of the graph does.) Without grad mode it is fn(inputs).
DTENSOR_API std::vector<at::Tensor> checkpoint(const CheckpointedFunction& fn, const std::vector<at::Tensor>& inputs,
                                               const CheckpointOptions& options = {});
DTENSOR_API at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& fn, const at::Tensor& input,
                                  const CheckpointOptions& options = {});

}  // namespace dtensor
