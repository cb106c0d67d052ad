// Backward in two halves: the gradients of a stage's inputs first, for which the stage before waits, those of its
// weights some time later.
#pragma once

#include <torch/csrc/autograd/function.h>

#include "dtensor/pipeline.h"

namespace dtensor::pipeline {

// Of one microbatch. The graph of `outputs` belongs to it from then on.
class SplitBackward {
 public:
  // Gradients of `inputs`, undefined where none arrives. Where the graph holds a segment that is recomputed, whose
  // weights autograd does not see, those of the weights are computed too, and reduced over ranks where `reduces`.
  Tensors backward_input(const Tensors& outputs, const Tensors& gradients, const Tensors& inputs, bool reduces = true);
  // Adds the weights' gradients to .grad, through all hooks and once each, however often a weight is used.
  void backward_weight();
  // Whether nothing is left for it.
  bool empty() const { return roots_.empty(); }

 private:
  torch::autograd::edge_list roots_;
  Tensors arrived_;
};

}  // namespace dtensor::pipeline
