// Redistribution to another mesh, with its gradient. Partial is reduced on the source mesh, each shard is sent once,
// and replicas are converted to Partial on the destination mesh.
#include <torch/csrc/autograd/functions/utils.h>

#include "autograd/conversion_nodes.h"
#include "autograd/gradients/leaf_gradient.h"
#include "autograd/materialized_view.h"
#include "dtensor/tensor.h"
#include "internal/autograd_node.h"
#include "placement/stride_order.h"
#include "redistribute/between_meshes.h"

namespace dtensor {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

// Placements in which a tensor can be sent. Partial becomes Shard of the longest dimension, which is the cheapest
// reduction, or Replicate if the tensor is too small.
Placements reduced(const TensorSpec& spec) {
  Placements placements = spec.placements;
  const auto longest = std::max_element(spec.sizes.begin(), spec.sizes.end());
  const bool cut = longest != spec.sizes.end() && *longest >= static_cast<std::int64_t>(spec.mesh->layout.size());
  const auto dim = cut ? longest - spec.sizes.begin() : 0;
  for (std::size_t a = placements.size(); a-- > 0;) {
    placements[a] = placements[a].as_storage(false);
    if (!placements[a].is_partial()) continue;
    // Only an innermost shard does not move the shards of the other axes.
    const bool free =
        cut && std::none_of(placements.begin(), placements.end(), [&](const Placement& p) { return p.is_shard(dim); });
    placements[a] = free ? Placement(Shard(dim)) : Placement(Replicate());
  }
  return placements;
}

// Redistributes below autograd.
std::vector<at::Tensor> moved(const std::vector<at::Tensor>& tensors, const c10::intrusive_ptr<MeshImpl>& mesh,
                              const std::vector<Placements>& placements) {
  const at::NoGradGuard no_grad;
  std::vector<Placements> traveling;
  for (const at::Tensor& tensor : tensors) traveling.push_back(reduced(*dtensor_or_null(tensor)->spec()));
  const auto summed = redistribute_tensors(tensors, traveling);
  std::vector<CrossMeshMove> moves;
  for (std::size_t i = 0; i < summed.size(); ++i) {
    auto& impl = *dtensor_or_null(summed[i]);
    const auto& from = impl.spec();
    auto to = intern_spec(mesh, replicate_partials(placements[i]), from->sizes, from->strides, from->dtype);
    moves.push_back({from, std::move(to), from->mesh->is_member ? up_to_date_local(impl) : at::Tensor()});
  }
  auto locals = move_between_meshes(moves);
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < moves.size(); ++i) {
    if (locals[i].defined()) locals[i] = to_stride_order(std::move(locals[i]), *moves[i].to);
    results.push_back(make_dtensor(moves[i].to, std::move(locals[i])));
  }
  return redistribute_tensors(results, placements);
}

struct MeshChangeBackward final : Node {
  MeshChangeBackward(std::vector<SpecPtr> from, std::vector<SpecPtr> to)
      : specs(std::move(from)), results_of(std::move(to)) {}
  // One exchange for all defined gradients, which are the same on every rank.
  variable_list apply(variable_list&& grads) override {
    std::vector<DTensor> arrived;
    std::vector<Placements> placements;
    for (std::size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) continue;
      arrived.push_back(as_dtensor_like(grads[i], *results_of[i]));
      placements.push_back(replicate_partials(specs[i]->placements));
    }
    if (arrived.empty()) return variable_list(grads.size());
    const auto& home = as_mesh_impl(*specs[0]->mesh);
    const DeviceMesh mesh(c10::intrusive_ptr<MeshImpl>::reclaim_copy(const_cast<MeshImpl*>(&home)));
    const auto back = redistribute(arrived, mesh, std::move(placements));
    variable_list results(grads.size());
    for (std::size_t i = 0, next = 0; i < grads.size(); ++i) {
      if (grads[i].defined()) results[i] = back[next++];
    }
    return results;
  }
  std::string name() const override { return "MeshChangeBackward"; }
  std::vector<SpecPtr> specs, results_of;
};

// Tensors that require a gradient and are on the same mesh share a node.
void record(const std::vector<at::Tensor>& tensors, std::vector<at::Tensor>& results) {
  std::vector<bool> done(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (done[i] || !tensors[i].requires_grad()) continue;
    std::vector<at::Tensor> inputs;
    std::vector<SpecPtr> specs, results_of;
    std::vector<std::size_t> which;
    for (std::size_t k = i; k < tensors.size(); ++k) {
      const auto& spec = dtensor_or_null(tensors[k])->spec();
      if (!tensors[k].requires_grad() || spec->mesh != dtensor_or_null(tensors[i])->spec()->mesh) continue;
      done[k] = true;
      inputs.push_back(tensors[k]);
      specs.push_back(spec);
      results_of.push_back(dtensor_or_null(results[k])->spec());
      which.push_back(k);
    }
    auto node = make_node<MeshChangeBackward>(std::move(specs), std::move(results_of));
    node->set_next_edges(torch::autograd::collect_next_edges(inputs));
    for (const std::size_t k : which) torch::autograd::set_history(results[k], node);
  }
}

}  // namespace

std::vector<at::Tensor> redistribute_tensors(const std::vector<at::Tensor>& tensors,
                                             const c10::intrusive_ptr<MeshImpl>& mesh,
                                             const std::vector<Placements>& placements) {
  std::vector<at::Tensor> elsewhere, results(tensors.size()), here;
  std::vector<Placements> elsewhere_to, here_to;
  std::vector<bool> moves;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto& impl = *dtensor_or_null(tensors[i]);
    moves.push_back(impl.spec()->mesh.get() != mesh.get());
    if (at::GradMode::is_enabled() && tensors[i].requires_grad()) install_gradient_pipeline(impl);
    (moves[i] ? elsewhere : here).push_back(tensors[i]);
    (moves[i] ? elsewhere_to : here_to).push_back(placements[i]);
  }
  auto stayed = redistribute_tensors(here, here_to);
  auto arrived = moved(elsewhere, mesh, elsewhere_to);
  if (at::GradMode::is_enabled()) record(elsewhere, arrived);
  for (std::size_t i = 0, s = 0, a = 0; i < tensors.size(); ++i) results[i] = moves[i] ? arrived[a++] : stayed[s++];
  return results;
}

}  // namespace dtensor
