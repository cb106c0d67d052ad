// Experts of any kind: rows go to the rank that holds their module, which runs on a DTensor of the rows of all ranks
// that hold it too.
#include "dtensor/moe/experts.h"

#include <ATen/ATen.h>

#include <map>

#include "dtensor/debug.h"
#include "dtensor/moe/dispatch.h"
#include "dtensor/tensor.h"
#include "internal/parameter_swap.h"
#include "moe/dispatch/permute.h"
#include "moe/token_mapping.h"

namespace dtensor {

struct RoutedExperts::Impl {
  std::vector<std::unique_ptr<nn::Module>> modules;
  std::vector<Forward> forwards;
  DispatcherPtr dispatcher = local_dispatcher();
  moe::TokenMappings mappings;
  at::Tensor load;

  DeviceMesh mesh;                      // none: all experts are here
  std::vector<DeviceMesh> expert_mesh;  // by expert: the ranks that hold it
  std::int64_t first = 0;               // of those here
  // Places in `mesh` of the ranks whose tokens come to each of the ranks that hold an expert of this rank.
  std::vector<std::vector<std::int64_t>> sources;

  std::vector<std::int64_t> rows_of_holders(const at::Tensor& counts, std::int64_t expert) const;
  at::Tensor run(std::int64_t expert, const at::Tensor& rows, const at::Tensor& counts) const;
};

RoutedExperts::RoutedExperts() : impl_(std::make_unique<Impl>()) {}
RoutedExperts::~RoutedExperts() = default;

void RoutedExperts::add(std::unique_ptr<nn::Module> expert, Forward forward) {
  TORCH_CHECK(!impl_->mesh, "RoutedExperts: add experts before they are spread over ranks");
  register_module(std::to_string(size()), *expert);
  impl_->modules.push_back(std::move(expert));
  impl_->forwards.push_back(std::move(forward));
}

std::int64_t RoutedExperts::size() const { return static_cast<std::int64_t>(impl_->modules.size()); }
at::Tensor RoutedExperts::load() const { return impl_->load; }

namespace {

// Coordinates of the i-th rank of a mesh.
std::int64_t coordinate(const DeviceMesh& mesh, std::int64_t i, std::int64_t axis) {
  if (axis < 0) return 0;
  for (std::int64_t a = mesh.ndim() - 1; a > axis; --a) i /= mesh.size(a);
  return i % mesh.size(axis);
}

// Of an expert that was placed elsewhere (born in a MeshScope, or by a plan): what it was before. One that lies on
// `there` is a copy of an expert that was spread. Collective.
void make_regular(nn::Module& expert, const DeviceMesh& there) {
  auto tensors = expert.named_parameters();
  const auto buffers = expert.named_buffers();
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  std::map<const c10::TensorImpl*, std::pair<at::Tensor, at::Tensor>> done;  // tied ones stay tied
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
  TORCH_CHECK(!p.mesh, "RoutedExperts: spread over ", p.mesh.str(), " already");
  TORCH_CHECK(size() > 0 && here * ep == size(), "apply_expert_parallel: ", size(), " experts on ", ep, " ranks");
  p.expert_mesh.clear();  // of a call that threw
  for (std::int64_t part = 0; part < ep; ++part) {
    std::vector<std::int64_t> holders;
    for (std::int64_t i = 0; i < mesh.size(); ++i) {
      if (coordinate(mesh, i, ep_axis) == part) holders.push_back(mesh.ranks()[i]);
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
  if (!mesh.is_member()) return;  // experts of another stage of a pipeline: handles, which run nothing here
  p.first = mesh.coordinate()->at(ep_axis) * here;
  p.sources.resize(edp_axis < 0 ? 1 : mesh.size(edp_axis));
  for (std::int64_t i = 0; i < mesh.size(); ++i) p.sources[coordinate(mesh, i, edp_axis)].push_back(i);
  if (ep > 1) p.dispatcher = all_to_all_dispatcher(mesh.communicator(ep_axis));
}

// counts [ranks of the mesh, experts]
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
  if (!mesh) {  // parameters may be DTensors of this rank alone
    const auto parameters = modules[expert]->parameters();
    if (parameters.empty() || !is_dtensor(parameters[0])) return forwards[expert](rows);
    const auto own = DTensor(parameters[0]).mesh();
    return DTensor(forwards[expert](DTensor::from_local(rows, own, Placements(own.ndim()), rows.sizes()))).to_local();
  }
  const auto sizes = rows_of_holders(counts, expert);
  const auto all = c10::sum_integers(sizes);
  const Placement placement = sizes.size() == 1 ? Replicate() : RaggedShard(0, sizes);
  const DTensor input = DTensor::from_local(rows, expert_mesh[expert], {placement}, {all, rows.size(1)});
  const auto made = forwards[expert](input);
  TORCH_CHECK(made.sizes() == input.sizes(), "RoutedExperts: expert ", expert, " makes ", made.sizes(), " of ",
              input.sizes());
  TORCH_CHECK(is_dtensor(made), "RoutedExperts: expert ", expert, " makes a plain tensor of a DTensor");
  return DTensor(made).redistribute({placement}).to_local();
}

namespace {

// Judged are those that this rank was given, so that ranks which have the same ones find the same; shares of a sum by
// what they are together, `part`. Not on a device, where the host would wait.
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
  TORCH_CHECK(least.item<std::int64_t>() >= 0 && most.item<std::int64_t>() <= experts, "RoutedExperts: ids from ",
              least.item<std::int64_t>(), " to ", most.item<std::int64_t>(), " for ", experts,
              " experts; they begin at 0, and ", experts, " is no expert");
}

}  // namespace

at::Tensor RoutedExperts::forward(const at::Tensor& input, const at::Tensor& ids, const at::Tensor& weights) {
  const ModuleScope scope(name());
  auto& p = *impl_;
  const auto x = constrain("in", input);
  TORCH_CHECK(x.dim() >= 2 && ids.dim() == x.dim() && weights.sizes() == ids.sizes() &&
                  ids.sizes().slice(0, ids.dim() - 1) == x.sizes().slice(0, x.dim() - 1),
              "RoutedExperts: tokens ", x.sizes(), ", ids ", ids.sizes(), " and weights ", weights.sizes(),
              " disagree");
  TORCH_CHECK(is_dtensor(x) == is_dtensor(ids) && is_dtensor(x) == is_dtensor(weights),
              "RoutedExperts: of tokens, ids and weights some are DTensors and some are not");
  TORCH_CHECK(
      p.mesh || !is_dtensor(x) || DTensor(x).mesh().size() == 1,
      "RoutedExperts: for tokens on several ranks, spread the experts first (apply_expert_parallel; an axis ep of "
      "size 1 will do)");
  const auto& mapping = p.mappings.of(x, p.mesh, {});
  const auto part = moe::local_part(moe::to_tokens(x, mapping), mapping);
  const auto rows = part.reshape({-1, x.size(-1)});
  Routing routing;
  routing.expert_count = size();
  routing.experts = moe::local_part(moe::to_tokens(ids, mapping), mapping).reshape({-1, ids.size(-1)}).contiguous();
  check_ids(ids, routing.experts, size());
  routing.weights = moe::local_part(moe::to_tokens(weights, mapping), mapping).reshape({-1, ids.size(-1)});
  routing.counts = std::make_shared<SharedCounts>(count_bins(routing.experts, size()));
  routing.empty = -1;
  p.load = routing.counts->local();
  const bool others = p.mesh && p.mesh.size() > 1;
  if (others) routing.counts->begin(p.mesh.communicator());  // serves the exchange over ep as well
  auto plan = p.dispatcher->prepare(routing, mapping.layout);
  const auto sent = p.dispatcher->dispatch(rows, plan);
  const auto counts = routing.counts->of_ranks(others ? p.mesh.communicator() : Communicator());
  const auto pieces = sent.split_with_sizes(plan.host_rows(), 0);
  std::vector<at::Tensor> made;
  for (std::size_t e = 0; e < pieces.size(); ++e)
    made.push_back(p.run(p.first + static_cast<std::int64_t>(e), pieces[e], counts));
  return constrain("out",
                   moe::from_local_tokens(p.dispatcher->combine(at::cat(made), plan).view(part.sizes()), mapping));
}

}  // namespace dtensor
