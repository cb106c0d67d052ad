// Functions on local tensors with a custom autograd node (internal/autograd_node.h).
#pragma once

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "internal/aten_scopes.h"
#include "internal/autograd_node.h"

namespace dtensor::moe {

using dtensor::make_node;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

template <class... Inputs>
bool needs_graph(const Inputs&... inputs) {
  return at::GradMode::is_enabled() && ((inputs.defined() && inputs.requires_grad()) || ...);
}

// Sets `node` as grad_fn of `result`, with edges to `inputs` in order.
template <class... Inputs>
at::Tensor with_node(at::Tensor result, const NodePtr& node, const Inputs&... inputs) {
  node->set_next_edges(torch::autograd::collect_next_edges(inputs...));
  torch::autograd::set_history(result, node);
  return result;
}

}  // namespace dtensor::moe
