// The loss as a chain of ATen operators, for double backward. Their sharding rules keep shards of classes and tokens,
// but all logits of a rank exist at once, and more data is communicated.
#pragma once

#include <vector>

#include "dtensor/loss.h"

namespace dtensor {

struct DecomposedLoss {
  at::Tensor values, head;  // logits and undefined; or hidden and the weight of the head
  at::Tensor targets;
  const CrossEntropyOptions& options;

  at::Tensor value() const;
};

// Gradients of `values` and of `head`, times `grad`, with a graph. The third entry is undefined, as autograd requires.
std::vector<at::Tensor> gradient_with_graph(const DecomposedLoss& loss, const at::Tensor& grad);

}  // namespace dtensor
