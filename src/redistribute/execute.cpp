// Runs plans edge by edge, below autograd and on regular tensors.
#include "redistribute/execute.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "comm/event_listeners.h"
#include "dtensor/comm_backend.h"
#include "internal/aten_scopes.h"
#include "internal/dispatch_modes.h"
#include "internal/simulated.h"
#include "internal/wrapper_subclass.h"
#include "redistribute/edges/edge.h"

namespace dtensor {
namespace {

at::Tensor run(const EdgeCall& call) {
  switch (call.edge.kind) {
    case EdgeKind::slice:
      return run_slice(call);
    case EdgeKind::all_gather:
      return run_all_gather(call);
    case EdgeKind::all_to_all:
      return run_all_to_all(call);
    case EdgeKind::all_reduce:
      return run_all_reduce(call);
    case EdgeKind::reduce_scatter:
      return run_reduce_scatter(call);
    case EdgeKind::make_partial:
      return run_make_partial(call);
  }
  TORCH_CHECK(false, "unknown kind of edge");
}

bool reduces(const Edge& edge) { return edge.kind == EdgeKind::all_reduce || edge.kind == EdgeKind::reduce_scatter; }

// The dtype in which a tensor is communicated. Types of 8 bits have no sums of their own.
at::ScalarType communication_dtype(const RedistributePlan& plan, at::ScalarType own) {
  return c10::isFloat8Type(own) && std::any_of(plan.edges.begin(), plan.edges.end(), reduces) ? at::kFloat : own;
}

// The communication dtype is used up to the last reduction.
at::Tensor run_edges(const RedistributePlan& plan, const at::Tensor& local, const TensorSpec& from) {
  const auto own = local.scalar_type(), type = communication_dtype(plan, own);
  const auto last = std::find_if(plan.edges.rbegin(), plan.edges.rend(), reduces);
  const TensorGeometry geometry{from.sizes, from.mesh->layout.shape, static_cast<std::int64_t>(c10::elementSize(type))};
  at::Tensor current = resolve_conj_and_neg(local.to(type));
  for (const Edge& edge : plan.edges) {
    current = run(EdgeCall(edge, as_mesh_impl(*from.mesh), geometry, current, own, !shares_storage(current, local)));
    if (type != own && &edge == &*last) current = current.to(own);
  }
  return current;
}

std::string one_line(const RedistributePlan& plan) {
  std::string text;
  for (const Edge& edge : plan.edges) text += (text.empty() ? "" : "; ") + edge.str();
  return text;
}

}  // namespace

at::Tensor resolve_conj_and_neg(const at::Tensor& tensor) {
  if (tensor._is_zerotensor()) return tensor.clone();  // has no memory
  return tensor.is_conj() || tensor.is_neg() ? tensor.resolve_conj().resolve_neg() : tensor;
}

at::Tensor execute_plan(const RedistributePlan& plan, const at::Tensor& given, const TensorSpec& from) {
  if (plan.empty() || !from.mesh->is_member) return given;
  const bool is_number = given.dim() == 0 && is_wrapper_subclass(given);
  const at::Tensor local = is_number ? copy_to_memory(given) : given;
  TORCH_CHECK(local.sizes() == at::IntArrayRef(from.local_sizes), "redistribute: the local tensor has sizes ",
              local.sizes(), ", but ", from.str(), " has local sizes ", at::IntArrayRef(from.local_sizes),
              " on this rank");
  TORCH_CHECK(local.layout() == at::kStrided, "redistribute: expected a strided local tensor, got ", local.layout());
  check_is_no_wrapper(local, "redistribute");
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  // A MeshScope would turn buffers into DTensors.
  const NoMeshScopeGuard regular;
  const DisableDispatchModesGuard hidden;
  if (!is_listening(Event::Kind::redistribute)) return run_edges(plan, local, from);
  Event event{Event::Kind::redistribute, one_line(plan), "", plan.bytes_moved, std::chrono::steady_clock::now(), {}};
  at::Tensor result = run_edges(plan, local, from);
  emit_event(event);
  return result;
}

at::Tensor redistribute_local(const at::Tensor& local, const TensorSpec& from, const Placements& to) {
  return execute_plan(*find_plan(from, to), local, from);
}

}  // namespace dtensor
