// Expert parallelism: distributes experts over a sparse view of the ranks.
#include "moe/experts/expert_parallel.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "dtensor/tensor.h"
#include "internal/shard_segments.h"
#include "moe/dispatch/permute.h"
#include "moe/experts/experts.h"
#include "moe/routing/router_parts.h"
#include "moe/token_mapping.h"

namespace dtensor {
namespace moe {

at::Tensor run_over_etp(const at::Tensor& rows, at::IntArrayRef counts, const Communicator& etp,
                        const RunExperts& run) {
  const auto ranks = static_cast<std::int64_t>(etp.size()), experts = static_cast<std::int64_t>(counts.size());
  SharedCounts shared(at::tensor(counts, at::kLong));
  const auto all = shared.of_ranks(etp);
  const auto of_each = all.sum(1), of_expert = all.sum(0);
  const auto list = [](const at::Tensor& t) {
    const auto flat = t.contiguous();
    return std::vector<std::int64_t>(flat.const_data_ptr<std::int64_t>(),
                                     flat.const_data_ptr<std::int64_t>() + flat.numel());
  };
  std::vector<std::int64_t> order;
  for (std::int64_t e = 0; e < experts; ++e) {
    for (std::int64_t r = 0; r < ranks; ++r) order.push_back(r * experts + e);
  }
  const auto blocks = list(all), sizes = list(of_each);
  const auto made = run(gather_blocks(all_gather_rows(rows, sizes, etp), blocks, order), list(of_expert));
  return reduce_scatter_rows(scatter_blocks(made, blocks, order), sizes, etp);
}

}  // namespace moe

namespace {

using Parallel = MixtureOfExperts::Parallel;

struct Axes {
  std::int64_t ep = -1, edp = -1, etp = -1;
};

Axes find_axes(const DeviceMesh& mesh, const ExpertParallelOptions& o) {
  if (mesh.ndim() == 1) return {.ep = 0};
  Axes axes;
  for (std::int64_t a = 0; a < mesh.ndim(); ++a) {
    const auto name = moe::axis_name(mesh, a);
    auto* axis = name == o.ep ? &axes.ep : name == o.edp ? &axes.edp : name == o.etp ? &axes.etp : nullptr;
    TORCH_CHECK(axis != nullptr, "apply_expert_parallel: axis '", name, "' of ", mesh.str(), " is not one of ", o.edp,
                ", ", o.ep, ", ", o.etp);
    *axis = a;
  }
  TORCH_CHECK(axes.ep >= 0, "apply_expert_parallel: ", mesh.str(), " has no axis '", o.ep, "'");
  return axes;
}

std::int64_t size_of(const DeviceMesh& mesh, std::int64_t axis) { return axis < 0 ? 1 : mesh.size(axis); }

// Placements of [E, F, D] (w2: [E, D, F]): experts over ep, F over etp, storage over edp. Storage is sharded along the
// first dimension, or along the second if the first would give less than one row per rank.
Placements expert_placements(const DeviceMesh& mesh, const Axes& axes, std::int64_t experts, std::int64_t ffn_dim) {
  Placements placements(mesh.ndim());
  const auto ep = size_of(mesh, axes.ep), etp = size_of(mesh, axes.etp);
  placements[axes.ep] = Shard(0);
  if (axes.etp >= 0) placements[axes.etp] = Shard(ffn_dim);
  if (axes.edp < 0) return placements;
  const std::int64_t dim = experts / ep >= size_of(mesh, axes.edp) ? 0 : 1;
  std::int64_t inner = 1;  // number of parts from axes further right, which split first
  if (dim == 0 && axes.ep > axes.edp) inner *= ep;
  if (dim == ffn_dim && axes.etp > axes.edp) inner *= etp;
  placements[axes.edp] = after_split(Shard(dim), inner).as_storage();
  return placements;
}

DeviceMesh holders_of(const DeviceMesh& mesh, const Axes& axes) {
  const auto edp = size_of(mesh, axes.edp), etp = size_of(mesh, axes.etp);
  const auto here = mesh.coordinate().value();
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(edp * etp));
  for (const auto rank : mesh.ranks()) {
    const auto other = mesh.coordinate_of(rank).value();
    const auto row = axes.edp < 0 ? 0 : other[axes.edp], column = axes.etp < 0 ? 0 : other[axes.etp];
    if (other[axes.ep] == here[axes.ep]) ranks[static_cast<std::size_t>(row * etp + column)] = rank;
  }
  return device_mesh(mesh.world(), mesh.device_type(), ranks, {edp, etp}, {"edp", "etp"});
}

std::shared_ptr<const Parallel> make_parallel(const DeviceMesh& mesh, const Axes& axes) {
  auto parallel = std::make_shared<Parallel>();
  parallel->mesh = mesh;
  if (!mesh.is_member()) return parallel;  // experts of another pipeline stage: handles, which do not run here
  if (size_of(mesh, axes.ep) > 1) parallel->ep = mesh.communicator(axes.ep);
  parallel->split.push_back(moe::axis_name(mesh, axes.ep));
  parallel->holders = holders_of(mesh, axes);
  parallel->sources = moe::row_sources(mesh, axes.edp, axes.etp);
  if (axes.etp < 0) return parallel;
  parallel->split.push_back(moe::axis_name(mesh, axes.etp));
  if (size_of(mesh, axes.etp) > 1) {
    parallel->etp = mesh.communicator(axes.etp);
    parallel->etp_ranks = moe::slice_of(mesh, {moe::axis_name(mesh, axes.etp)}).ranks().vec();
  }
  return parallel;
}

void move_experts(MixtureOfExperts& layer, const DeviceMesh& mesh, const Axes& axes) {
  auto& e = layer.experts;
  const auto count = layer.options().router.experts;
  for (auto* w : {&e.w1, &e.w2, &e.w3}) {
    if (!w->defined()) continue;
    if (is_dtensor(*w) && !(DTensor(*w).mesh() == mesh)) {
      *w = DTensor(w->detach()).full_tensor().requires_grad_(w->requires_grad());
    }
    const std::int64_t ffn_dim = w == &e.w2 ? 2 : 1;
    nn::distribute({{"w", w}}, mesh,
                   [&](const auto&, const auto&) { return expert_placements(mesh, axes, count, ffn_dim); });
  }
}

std::vector<RoutedExperts*> routed_experts(nn::Module& model) {
  std::vector<RoutedExperts*> lists;
  for (const auto& [name, module] : model.named_modules()) {
    if (auto* list = dynamic_cast<RoutedExperts*>(module)) lists.push_back(list);
  }
  return lists;
}

}  // namespace

int apply_expert_parallel(nn::Module& model, const DeviceMesh& mesh, const ExpertParallelOptions& options) {
  const auto layers = moe_layers(model);
  const auto lists = routed_experts(model);
  TORCH_CHECK(layers.size() + lists.size() > 0,
              "apply_expert_parallel: expected a model with MixtureOfExperts or RoutedExperts modules, found none");
  const int found = static_cast<int>(layers.size() + lists.size());
  const auto axes = find_axes(mesh, options);
  const auto ep = size_of(mesh, axes.ep), etp = size_of(mesh, axes.etp);
  for (auto* layer : layers) {
    const auto& o = layer->options();
    TORCH_CHECK(o.router.experts % ep == 0, "apply_expert_parallel: ", o.router.experts,
                " experts are not divisible by ", ep, " ranks");
    TORCH_CHECK(o.ffn % etp == 0, "apply_expert_parallel: a hidden size of ", o.ffn, " is not divisible by ", etp,
                " ranks");
  }
  for (auto* list : lists) {
    TORCH_CHECK(etp == 1, "apply_expert_parallel: RoutedExperts on ", mesh.str(),
                ": user-defined expert modules cannot be split over '", options.etp, "'");
    TORCH_CHECK(list->size() % ep == 0, "apply_expert_parallel: ", list->size(), " experts are not divisible by ", ep,
                " ranks");
  }
  if (mesh.size() == 1) return found;
  const auto parallel = make_parallel(mesh, axes);
  for (auto* layer : layers) {
    move_experts(*layer, mesh, axes);
    layer->set_parallel(parallel);
  }
  for (auto* list : lists) list->set_expert_parallel(mesh, axes.ep, axes.edp);
  return found;
}

}  // namespace dtensor
