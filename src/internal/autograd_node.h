// Creates autograd nodes that hold arbitrary C++ objects, in every supported LibTorch release.
// torch::autograd::Function stores only IValues, and a communicator or a mesh is not one.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace dtensor {

// A std::shared_ptr in older LibTorch releases, an intrusive_ptr in newer ones.
using NodePtr = decltype(torch::autograd::Edge::function);
using WeakNodePtr =
    std::conditional_t<std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>,
                       std::weak_ptr<torch::autograd::Node>, c10::weak_intrusive_ptr<torch::autograd::Node>>;

// Creates a NodeType (derived from torch::autograd::Node) and returns a pointer that converts to NodePtr. The caller
// sets its edges.
template <class NodeType, class... Args>
auto make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>) {
    // deleteNode, as in LibTorch, so that deleting a long graph does not overflow the stack.
    return std::shared_ptr<NodeType>(new NodeType(std::forward<Args>(args)...), [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<NodeType>(std::forward<Args>(args)...);
  }
}

}  // namespace dtensor
