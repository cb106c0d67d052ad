// How a function on local tensors gets a gradient: by a node of its own (dtensor/autograd_node.h).
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "dtensor/autograd_node.h"

namespace dtensor::moe {

using dtensor::make_node;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// What is allocated for local tensors is plain, whatever a MeshScope makes of the user's own calls of factories.
struct NoMeshScope {
  c10::impl::ExcludeDispatchKeyGuard no_mesh_scope{c10::DispatchKey::DeferredInit};
};

// Local tensors are computed with by ATen alone: no graph, no DTensors made by a MeshScope, no types of autocast, of
// which backward would know nothing.
struct LocalScope : NoMeshScope {
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

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
