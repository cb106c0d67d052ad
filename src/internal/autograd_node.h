// Making a node of autograd's graph with whatever it needs to hold (torch's own Function only holds IValues, and a
// communicator or a mesh is none), in every supported release of LibTorch.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace dtensor {

// A std::shared_ptr in older releases of LibTorch, an intrusive_ptr in newer ones.
using NodePtr = decltype(torch::autograd::Edge::function);

// A pointer to a NodeType (derived from torch::autograd::Node) made of these arguments, of which a NodePtr can be made;
// its edges are yet to be set.
template <class NodeType, class... Args>
auto make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>) {
    // As LibTorch lets go of its own, so that a long graph does not exhaust the stack.
    return std::shared_ptr<NodeType>(new NodeType(std::forward<Args>(args)...), [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<NodeType>(std::forward<Args>(args)...);
  }
}

}  // namespace dtensor
