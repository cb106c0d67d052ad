// How a function on local tensors gets a gradient: a node of autograd's graph that holds whatever it needs (torch's own
// Function can only hold IValues, and a communicator is none).
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <utility>

namespace dtensor::moe {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// A std::shared_ptr in older releases of LibTorch, an intrusive_ptr in newer ones.
using NodePtr = decltype(torch::autograd::Edge::function);

template <class NodeType, class... Args>
NodePtr make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<Node>>) {
    return NodePtr(new NodeType(std::forward<Args>(args)...));
  } else {
    return NodePtr(c10::make_intrusive<NodeType>(std::forward<Args>(args)...));
  }
}

template <class... Inputs>
bool needs_graph(const Inputs&... inputs) {
  return at::GradMode::is_enabled() && ((inputs.defined() && inputs.requires_grad()) || ...);
}

// `result`, whose gradient `node` turns into those of `inputs` (in order).
template <class... Inputs>
at::Tensor with_node(at::Tensor result, const NodePtr& node, const Inputs&... inputs) {
  node->set_next_edges(torch::autograd::collect_next_edges(inputs...));
  torch::autograd::set_history(result, node);
  return result;
}

}  // namespace dtensor::moe
