// Activation checkpointing: activations of a part of the model are freed after forward and recomputed in backward. It
// trades time for memory. Gradients are bitwise equal, random numbers included.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "dtensor/export.h"

namespace dtensor {

// What checkpoint() keeps.
struct RecomputeOptions {
  // Results of these operators ("aten::mm", all overloads) on DTensors are kept and neither computed nor communicated a
  // second time. All other results are recomputed.
  std::set<std::string> keep = {};
};

// Returns fn(inputs) and keeps only the inputs, and the results of options.keep, until backward, which runs fn again.
// fn may draw random numbers of DTensors on any mesh (recomputation draws the same ones) and use captured parameters.
// It must not change anything else. Gradients of captured parameters are accumulated once. Changing an input in place
// before backward is an error. Segments may be nested. Double backward is an error, and so is autograd::grad for
// tensors other than the inputs. (backward with `inputs` that no input of the segment leads to does not run the
// segment: a parameter that only it captures gets no gradient, like a tensor outside the graph.) Without grad mode the
// call is fn(inputs).
DTENSOR_API std::vector<at::Tensor> checkpoint(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& fn,
    const std::vector<at::Tensor>& inputs, const RecomputeOptions& options = {});
DTENSOR_API at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& fn, const at::Tensor& input,
                                  const RecomputeOptions& options = {});

}  // namespace dtensor
