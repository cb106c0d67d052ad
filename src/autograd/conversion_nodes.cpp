// Autograd nodes of conversions between local tensors and DTensors, and of redistribution.
#include "autograd/conversion_nodes.h"

#include <c10/util/strides.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "autograd/gradients/leaf_gradient.h"
#include "autograd/materialized_view.h"
#include "dtensor/tensor.h"
#include "internal/aten_scopes.h"
#include "internal/autograd_node.h"
#include "internal/dispatch_modes.h"
#include "internal/local_data.h"
#include "internal/scoped_value.h"
#include "internal/simulated.h"
#include "internal/wrapper_subclass.h"
#include "mesh/content_hash.h"
#include "placement/shard_map.h"
#include "placement/stride_order.h"
#include "redistribute/batched.h"
#include "redistribute/execute.h"
#include "redistribute/result_buffers.h"

namespace dtensor {
namespace {

using torch::autograd::collect_next_edges;
using torch::autograd::Node;
using torch::autograd::variable_list;

bool needs_graph(const at::Tensor& tensor) { return at::GradMode::is_enabled() && tensor.requires_grad(); }

template <class NodeType, class... Args>
at::Tensor with_history(at::Tensor result, const at::Tensor& input, Args&&... args) {
  if (!needs_graph(input)) return result;
  auto node = make_node<NodeType>(std::forward<Args>(args)...);
  node->set_next_edges(collect_next_edges(input));
  torch::autograd::set_history(result, node);
  return result;
}

double average_share(const TensorSpec& spec) {
  double share = 1;
  for (std::size_t i = 0; i < spec.placements.size(); ++i) {
    const auto& p = spec.placements[i];
    if (p.is_partial(ReduceOp::avg)) share /= static_cast<double>(spec.mesh->layout.shape[i]);
    TORCH_CHECK(!p.is_partial() || p.is_partial(ReduceOp::avg) || p.is_partial(ReduceOp::sum),
                "from_local: no gradient is defined for ", p.str(), "; redistribute it inside no_grad");
  }
  return share;
}

struct FromLocalBackward final : Node {
  explicit FromLocalBackward(SpecPtr s) : spec(std::move(s)), share(average_share(*spec)) {}
  variable_list apply(variable_list&& grads) override {
    // A rank outside the mesh has no local gradient.
    if (!grads[0].defined() || !spec->mesh->is_member) return {at::Tensor()};
    const DisableDispatchModesGuard hidden;
    const auto wanted = replicate_partials(spec->placements);
    auto local = as_dtensor_like(grads[0], *spec).redistribute(wanted).to_local(wanted);
    return {share == 1 ? local : local.mul(share)};
  }
  std::string name() const override { return "FromLocalBackward"; }
  SpecPtr spec;
  double share;
};

// If a local tensor was used with DTensors, it counted as Replicate, and its gradient is a DTensor: converts it back.
at::Tensor local_gradient(const at::Tensor& grad, const TensorSpec& spec) {
  if (!is_dtensor(grad)) return grad;
  TORCH_CHECK(spec.replicated_axes() == spec.mesh->nontrivial_axes, "to_local: the local tensor of ", spec.str(),
              " was used among DTensors, where it counts as equal on every rank, so its gradient cannot "
              "differ by rank; use the DTensor itself, or local tensors only");
  const DTensor full(grad);
  return full.redistribute(Placements(full.placements().size())).to_local();
}

// Ranks may compute gradients with different strides; all use the strides of the forward tensor.
at::DimVector strides_of_gradient(const TensorSpec& spec) {
  return has_dense_order(spec) ? at::DimVector(spec.strides) : at::DimVector(c10::contiguous_strides(spec.sizes));
}

struct ToLocalBackward final : Node {
  ToLocalBackward(SpecPtr s, Placements p, AxisMask check)
      : spec(std::move(s)), placements(std::move(p)), checked_axes(check) {}
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor()};
    const DisableDispatchModesGuard hidden;
    const bool met_dtensors = is_dtensor(grads[0]);
    const at::Tensor grad = local_gradient(grads[0], *spec);
    if (checked_axes != 0 && !met_dtensors) {
      check_equal_across_ranks(
          as_mesh_impl(*spec->mesh), checked_axes, grad,
          c10::str("to_local: the gradient of the local tensor of ", spec->str(),
                   " differs between ranks that replicate it. If the gradients of the ranks are summands, "
                   "pass grad_placements with Partial() for that axis; if the differences are rounding errors, "
                   "pass Replicate()"));
    }
    auto mesh = c10::intrusive_ptr<MeshImpl>::reclaim_copy(const_cast<MeshImpl*>(&as_mesh_impl(*spec->mesh)));
    return {wrap_local(grad, infer_spec(grad, mesh, placements, spec->sizes, strides_of_gradient(*spec)))};
  }
  std::string name() const override { return "ToLocalBackward"; }
  SpecPtr spec;
  Placements placements;
  AxisMask checked_axes;
};

// The same placements, but with the shards of `other` where they are Replicate.
Placements with_shards_of(Placements placements, const Placements& other) {
  Placements sharded = placements;
  for (std::size_t a = 0; a < placements.size(); ++a) {
    if (placements[a].is_replicate() && other[a].is_shard()) sharded[a] = other[a];
  }
  return at_most_one_ragged(sharded) ? sharded : placements;
}

struct RedistributeBackward final : Node {
  RedistributeBackward(SpecPtr s, bool keep) : spec(std::move(s)), keeps_shards(keep) {}
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor()};
    const DisableDispatchModesGuard hidden;
    const DTensor grad = as_dtensor_like(grads[0], *spec);
    const auto wanted = replicate_partials(spec->placements);
    return {grad.redistribute(keeps_shards ? with_shards_of(wanted, grad.placements()) : wanted)};
  }
  std::string name() const override { return "RedistributeBackward"; }
  SpecPtr spec;
  bool keeps_shards;  // where the forward tensor is Replicate
};

}  // namespace

Placements replicate_partials(Placements placements) {
  for (auto& p : placements) p = p.is_partial() ? Replicate() : p.as_storage(false);
  return placements;
}

Placements local_gradient_placements(Placements placements) {
  for (auto& p : placements) {
    p = p.is_partial(ReduceOp::avg) ? Partial() : p.is_partial() ? Replicate() : p.as_storage(false);
  }
  return placements;
}

Placements gathered_placements(Placements placements) {
  for (auto& p : placements) {
    if (p.is_storage()) p = Replicate();
  }
  return placements;
}

DTensor as_dtensor_like(const at::Tensor& grad, const TensorSpec& spec) {
  if (is_dtensor(grad)) return DTensor(grad);
  auto mesh = c10::intrusive_ptr<MeshImpl>::reclaim_copy(const_cast<MeshImpl*>(&as_mesh_impl(*spec.mesh)));
  return DTensor(distribute_regular_tensor(grad, mesh, Placements(spec.placements.size())));
}

at::Tensor wrap_local(const at::Tensor& local, SpecPtr spec) {
  // Shares memory with `local` if that is dense, as kernels expect of a tensor with dense global strides.
  // A wrapper subclass stays the object that it is.
  const auto stored = [&] { return is_wrapper_subclass(local) ? local : to_stride_order(local.detach(), *spec); };
  auto result = make_dtensor(spec, spec->mesh->is_member ? stored() : at::Tensor());
  return with_history<FromLocalBackward>(std::move(result), local, std::move(spec));
}

namespace {

void note_shard(const TensorSpec& spec) {
  const auto& placements = spec.placements;
  const bool shard = std::any_of(placements.begin(), placements.end(), [](const auto& p) { return p.is_shard(); });
  if (!shard || spec.mesh->nontrivial_axes == 0) return;
  ScopedValue<LocalDataCall>::for_each([&](const LocalDataCall& call) {
    const DeviceMesh mesh(c10::intrusive_ptr<MeshImpl>::reclaim_copy(const_cast<MeshImpl*>(&as_mesh_impl(*spec.mesh))));
    if (std::find(call.sharded->begin(), call.sharded->end(), mesh) == call.sharded->end())
      call.sharded->push_back(mesh);
  });
}

}  // namespace

at::Tensor unwrap_local(const at::Tensor& tensor, Placements grad_placements, bool skip_replicate_check) {
  auto* impl = dtensor_or_null(tensor);
  TORCH_CHECK(impl != nullptr, "to_local: expected a DTensor, got an undefined tensor");
  const auto& spec = impl->spec();
  TORCH_CHECK(spec->mesh->is_member, "to_local: world rank ", spec->mesh->world_rank, " is outside the mesh of ",
              spec->str());
  up_to_date_local(*impl);
  if (!needs_graph(tensor)) return impl->local();
  install_gradient_pipeline(*impl);
  note_shard(*spec);
  AxisMask check = 0;
  if (grad_placements.empty()) {
    check = skip_replicate_check ? 0 : spec->replicated_axes();
    grad_placements = local_gradient_placements(spec->placements);
  }
  grad_placements = normalize_placements(std::move(grad_placements), tensor.dim(), spec->mesh->layout.shape);
  const EnableSubclassesGuard subclasses;
  return with_history<ToLocalBackward>(impl->local().detach(), tensor, spec, std::move(grad_placements), check);
}

namespace {

at::Tensor moved_local(at::Tensor moved, const DTensorImpl& tensor) {
  const at::AutoDispatchBelowADInplaceOrView below;
  moved = moved.to(tensor.spec()->dtype);
  if (shares_storage(moved, tensor.local())) moved = copied(moved);
  return to_stride_order(std::move(moved), *tensor.spec());
}

at::Tensor moved_tensor(const at::Tensor& tensor, const Placements& placements, at::Tensor local,
                        bool keeps_shards = false) {
  const auto from = dtensor_or_null(tensor)->spec();
  return with_history<RedistributeBackward>(make_dtensor(with_placements(*from, placements), std::move(local)), tensor,
                                            from, keeps_shards);
}

}  // namespace

at::Tensor redistribute_local_of(DTensorImpl& tensor, const Placements& placements) {
  up_to_date_local(tensor);
  if (!tensor.spec()->mesh->is_member) return {};
  const auto plan = find_plan(*tensor.spec(), placements);
  if (plan->empty()) return tensor.local();
  return moved_local(execute_plan(*plan, tensor.local(), *tensor.spec()), tensor);
}

std::vector<at::Tensor> redistribute_tensors(const std::vector<at::Tensor>& tensors,
                                             const std::vector<Placements>& placements) {
  auto results = tensors;
  std::vector<std::pair<std::size_t, PlanRef>> packed;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto& impl = *dtensor_or_null(tensors[i]);
    if (impl.spec()->placements == placements[i]) continue;
    if (needs_graph(tensors[i])) install_gradient_pipeline(impl);
    const bool packs = tensors.size() > 1 && impl.spec()->mesh->is_member;
    if (auto plan = packs ? find_plan(*impl.spec(), placements[i]) : nullptr; plan && !plan->empty()) {
      packed.emplace_back(i, std::move(plan));
    } else {
      results[i] = moved_tensor(tensors[i], placements[i], redistribute_local_of(impl, placements[i]));
    }
  }
  RedistributeBucket bucket;
  for (const auto& [i, plan] : packed) {
    auto& impl = *dtensor_or_null(tensors[i]);
    up_to_date_local(impl);
    bucket.add(*plan, *impl.spec(), impl.local());
  }
  bucket.run();
  for (std::size_t k = 0; k < packed.size(); ++k) {
    const auto i = packed[k].first;
    results[i] = moved_tensor(tensors[i], placements[i], moved_local(bucket[k], *dtensor_or_null(tensors[i])));
  }
  return results;
}

DTensor redistribute_gradient(const DTensor& gradient, const Placements& placements) {
  if (!needs_graph(gradient) || gradient.placements() == placements) return gradient.redistribute(placements);
  auto& impl = *dtensor_or_null(gradient);
  install_gradient_pipeline(impl);
  return DTensor(moved_tensor(gradient, placements, redistribute_local_of(impl, placements), /*keeps_shards=*/true));
}

namespace {

// A DTensor whose local tensor is on the meta device too.
at::Tensor split_meta(const at::Tensor& tensor, const c10::intrusive_ptr<MeshImpl>& mesh, Placements placements) {
  at::Tensor local;
  if (mesh->is_member) {
    const LocalBelowAutogradGuard regular;
    local = at::empty(local_sizes(tensor.sizes(), placements, mesh->layout.shape, mesh->coordinate), tensor.options());
  }
  auto spec = intern_spec(mesh, std::move(placements), tensor.sizes(), c10::contiguous_strides(tensor.sizes()),
                          tensor.scalar_type());
  return make_dtensor(std::move(spec), std::move(local));
}

}  // namespace

at::Tensor distribute_regular_tensor(const at::Tensor& tensor, const c10::intrusive_ptr<MeshImpl>& mesh,
                                     Placements placements) {
  if (tensor.is_meta()) return split_meta(tensor, mesh, std::move(placements));
  auto full = tensor.device().type() == mesh->device ? tensor : tensor.to(mesh->device);
  if (!full.is_non_overlapping_and_dense()) full = full.contiguous();
  auto replicated = intern_spec(mesh, Placements(placements.size()), full.sizes(), full.strides(), full.scalar_type());
  auto result = redistribute_tensors({wrap_local(full, std::move(replicated))}, {std::move(placements)})[0];
  auto* impl = dtensor_or_null(result);
  // Thread ranks may pass the same tensor object, so each needs its own memory.
  if (impl->local().defined() && shares_storage(impl->local(), tensor)) {
    at::AutoDispatchBelowADInplaceOrView guard;
    impl->reset(impl->spec(), impl->local().clone());
  }
  return result;
}

}  // namespace dtensor
