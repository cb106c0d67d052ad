// Experts of any module type. Rows are sent to the ranks that hold the expert's module, which runs on a DTensor with
// the rows of all these ranks.
#include "dtensor/moe/experts.h"

#include <ATen/ATen.h>

#include <map>

#include "dtensor/moe/dispatch.h"
#include "dtensor/tensor.h"
#include "internal/bit_identical.h"
#include "internal/parameter_swap.h"
#include "moe/dispatch/permute.h"
#include "moe/experts/expert_rows.h"
#include "moe/routing/router_parts.h"
#include "moe/token_mapping.h"

namespace dtensor {

struct RoutedExperts::Impl {
  std::vector<std::unique_ptr<nn::Module>> modules;
  std::vector<Forward> forwards;
  std::shared_ptr<const Dispatcher> dispatcher = make_dispatcher(DispatchKind::all_to_all, {});
  moe::TokenMappings mappings;
  at::Tensor load;

  DeviceMesh mesh;                      // undefined: all experts are on this rank
  std::vector<DeviceMesh> expert_mesh;  // by expert: the ranks that hold it
  std::int64_t first = 0;               // first local expert
  moe::RowSources sources;              // of this rank's experts

  std::vector<std::int64_t> rows_of_holders(const at::Tensor& counts, std::int64_t expert) const;
  at::Tensor run(std::int64_t expert, const at::Tensor& rows, const at::Tensor& counts) const;
};

RoutedExperts::RoutedExperts() : impl_(std::make_unique<Impl>()) {}
RoutedExperts::~RoutedExperts() = default;

void RoutedExperts::add(std::unique_ptr<nn::Module> expert, Forward forward) {
  TORCH_CHECK(!impl_->mesh, "RoutedExperts: add experts before apply_expert_parallel");
  register_module(std::to_string(size()), *expert);
  impl_->modules.push_back(std::move(expert));
  impl_->forwards.push_back(std::move(forward));
}

std::int64_t RoutedExperts::size() const { return static_cast<std::int64_t>(impl_->modules.size()); }
at::Tensor RoutedExperts::load() const { return impl_->load; }

namespace {

// Converts DTensor parameters of an expert (from a MeshScope or a plan) to regular tensors. Parameters on `there` are
// kept, because they belong to a copy of a distributed expert. Collective.
void make_regular(nn::Module& expert, const DeviceMesh& there) {
  auto tensors = expert.named_parameters();
  const auto buffers = expert.named_buffers();
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  std::map<const c10::TensorImpl*, std::pair<at::Tensor, at::Tensor>> done;  // preserves tied parameters
  for (const auto& [name, slot] : tensors) {
    if (!slot->defined() || !is_dtensor(*slot) || DTensor(*slot).mesh() == there) continue;
    auto& [former, full] = done[slot->unsafeGetTensorImpl()];
    if (!full.defined()) {
      former = *slot;
      full = DTensor(former.detach()).full_tensor().requires_grad_(former.requires_grad());
      record_parameter_swap(former);
    }
    *slot = full;
  }
}

}  // namespace

void RoutedExperts::set_expert_parallel(const DeviceMesh& mesh, std::int64_t ep_axis, std::int64_t edp_axis) {
  auto& p = *impl_;
  const auto ep = mesh.size(ep_axis), here = size() / ep;
  TORCH_CHECK(!p.mesh, "RoutedExperts: distributed over ", p.mesh.str(), " already");
  TORCH_CHECK(size() > 0 && here * ep == size(), "apply_expert_parallel: ", size(), " experts are not divisible by ",
              ep, " ranks");
  p.expert_mesh.clear();  // left by a call that threw
  for (std::int64_t part = 0; part < ep; ++part) {
    std::vector<std::int64_t> holders;
    for (const auto rank : mesh.ranks()) {
      if (mesh.coordinate_of(rank)->at(ep_axis) == part) holders.push_back(rank);
    }
    const auto slice =
        device_mesh(mesh.world(), mesh.device_type(), holders, {static_cast<std::int64_t>(holders.size())},
                    {"expert_replicas"});  // a name that no slice of `mesh` has
    for (std::int64_t e = part * here; e < (part + 1) * here; ++e) {
      p.expert_mesh.push_back(slice);
      make_regular(*p.modules[e], slice);
      p.modules[e]->distribute(slice, [](const auto&, const auto&) { return Placements{Replicate()}; });
    }
  }
  p.mesh = mesh;
  if (!mesh.is_member()) return;  // experts of another pipeline stage: handles, which do not run here
  p.first = mesh.coordinate()->at(ep_axis) * here;
  p.sources = moe::row_sources(mesh, edp_axis, /*etp=*/-1);
  if (ep > 1) p.dispatcher = make_dispatcher(DispatchKind::all_to_all, mesh.communicator(ep_axis));
}

// counts: [ranks of the mesh, experts]
std::vector<std::int64_t> RoutedExperts::Impl::rows_of_holders(const at::Tensor& counts, std::int64_t expert) const {
  std::vector<std::int64_t> rows;
  for (const auto& from : sources) {
    std::int64_t sum = 0;
    for (const auto rank : from) sum += counts.const_data_ptr<std::int64_t>()[rank * counts.size(1) + expert];
    rows.push_back(sum);
  }
  return rows;
}

at::Tensor RoutedExperts::Impl::run(std::int64_t expert, const at::Tensor& rows, const at::Tensor& counts) const {
  if (!mesh) {  // parameters may be DTensors on this rank alone
    const auto parameters = modules[expert]->parameters();
    if (parameters.empty() || !is_dtensor(parameters[0])) return forwards[expert](rows);
    const auto own = DTensor(parameters[0]).mesh();
    return DTensor(forwards[expert](DTensor::from_local(rows, own, Placements(own.ndim()), rows.sizes()))).to_local();
  }
  return moe::run_on_holders(rows, expert_mesh[expert], rows_of_holders(counts, expert), forwards[expert],
                             c10::str("RoutedExperts: expert ", expert));
}

namespace {

// Checks the ids that this rank was given, so that ranks with the same ids raise the same error. Partial ids are
// checked after reduction, as `part`. Ids on a device are not checked, because this would synchronize the host.
void check_ids(const at::Tensor& given, const at::Tensor& part, std::int64_t experts) {
  const auto is_share = [](const Placement& p) { return p.is_partial(); };
  bool shares = false;
  if (is_dtensor(given)) {
    const auto& placements = DTensor(given).placements();
    shares = std::any_of(placements.begin(), placements.end(), is_share);
  }
  const auto ids = shares ? part : moe::local_view(given);
  if (!ids.is_cpu() || ids.numel() == 0) return;
  const auto [least, most] = at::aminmax(ids);
  TORCH_CHECK(least.item<std::int64_t>() >= 0 && most.item<std::int64_t>() <= experts, "RoutedExperts: got ids from ",
              least.item<std::int64_t>(), " to ", most.item<std::int64_t>(), " for ", experts,
              " experts; expected ids from 0, where ", experts, " selects no expert");
}

}  // namespace

at::Tensor RoutedExperts::compute(const at::Tensor& x, const at::Tensor& ids, const at::Tensor& weights) {
  auto& p = *impl_;
  TORCH_CHECK(x.dim() >= 2 && ids.dim() == x.dim() && weights.sizes() == ids.sizes() &&
                  ids.sizes().slice(0, ids.dim() - 1) == x.sizes().slice(0, x.dim() - 1),
              "RoutedExperts: tokens ", x.sizes(), ", ids ", ids.sizes(), " and weights ", weights.sizes(),
              " do not match");
  TORCH_CHECK(is_dtensor(x) == is_dtensor(ids) && is_dtensor(x) == is_dtensor(weights),
              "RoutedExperts: expected tokens, ids and weights to be all DTensors or all regular tensors");
  TORCH_CHECK(p.mesh || !is_dtensor(x) || DTensor(x).mesh().size() == 1,
              "RoutedExperts: for tokens on several ranks, call apply_expert_parallel first (an axis ep of "
              "size 1 is enough)");
  const auto& mapping = p.mappings.of(x, p.mesh, {});
  const auto part = moe::local_part(moe::to_tokens(x, mapping), mapping);
  const auto rows = part.reshape({-1, x.size(-1)});
  if (!x.is_cpu()) refuse_if_bit_identical("RoutedExperts on another device than the CPU");
  if (mapping.bit_identical && p.mesh) {
    moe::check_row_order("RoutedExperts", p.mesh, p.sources, mapping.layout, rows.size(0));
  }
  Routing routing;
  routing.expert_count = size();
  routing.experts = moe::local_part(moe::to_tokens(ids, mapping), mapping).reshape({-1, ids.size(-1)}).contiguous();
  check_ids(ids, routing.experts, size());
  routing.weights = moe::local_part(moe::to_tokens(weights, mapping), mapping).reshape({-1, ids.size(-1)});
  routing.counts = std::make_shared<SharedCounts>(count_bins(routing.experts, size()));
  routing.empty = -1;
  p.load = routing.counts->local();
  const bool others = p.mesh && p.mesh.size() > 1;
  if (others) routing.counts->begin(p.mesh.communicator());  // also used by the exchange over ep
  auto plan = p.dispatcher->prepare(routing, mapping.layout);
  const auto sent = p.dispatcher->dispatch(rows, plan);
  const auto counts = routing.counts->of_ranks(others ? p.mesh.communicator() : Communicator());
  const auto pieces = sent.split_with_sizes(plan.host_rows(), 0);
  std::vector<at::Tensor> made;
  for (std::size_t e = 0; e < pieces.size(); ++e)
    made.push_back(p.run(p.first + static_cast<std::int64_t>(e), pieces[e], counts));
  const auto results = moe::refuse_microbatches(at::cat(made), "RoutedExperts");
  return moe::from_local_tokens(p.dispatcher->combine(results, plan).view(part.sizes()), mapping);
}

}  // namespace dtensor
