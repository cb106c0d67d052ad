// The loss as a chain of ATen's operators, for who differentiates its gradient: their rules keep shards of classes and
// of tokens, but each rank's logits exist as a whole and more is communicated.
#pragma once

#include <vector>

#include "dtensor/loss.h"

namespace dtensor {

struct DecomposedLoss {
  at::Tensor values, head;  // logits; or hidden and the weight, whose logits they give (undefined: none)
  at::Tensor targets;
  const CrossEntropyOptions& options;

  at::Tensor value() const;
};

// By values and by head, times `grad`, with a graph; a third entry, undefined, for autograd.
std::vector<at::Tensor> gradient_with_graph(const DecomposedLoss& loss, const at::Tensor& grad);

}  // namespace dtensor
