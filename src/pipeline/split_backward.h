// Backward in two halves: first the gradients of a stage's inputs, for which the previous stage waits, later those of
// its weights.
#pragma once

#include <torch/csrc/autograd/function.h>

#include "dtensor/pipeline.h"

namespace dtensor::pipeline {

// The split backward of one microbatch, which owns the graph of `outputs` once it has begun.
class SplitBackward {
 public:
  // Returns the gradients of `inputs`, undefined if none arrives. If the graph contains a recomputed segment, whose
  // weights are not in autograd's graph, also computes the gradients of weights. Reduces them over ranks if `reduces`.
  Tensors backward_input(const Tensors& outputs, const Tensors& gradients, const Tensors& inputs, bool reduces = true);
  // Adds the weights' gradients to .grad. Hooks run once per weight, even if it is used several times.
  void backward_weight();
  // Whether backward_weight() has nothing to do.
  bool empty() const { return roots_.empty(); }

 private:
  torch::autograd::edge_list roots_;
  Tensors arrived_;
  const char* indivisible_sum_ = nullptr;  // that the first half noted (internal/microbatch_sums.h)
};

}  // namespace dtensor::pipeline
