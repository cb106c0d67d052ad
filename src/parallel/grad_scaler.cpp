// The scale has the same value on every rank because found-inf has: each rank inspects its local gradients, and a
// maximum over the ranks of all meshes makes the result the same everywhere.
#include "dtensor/grad_scaler.h"
#include "internal/aten_scopes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <limits>
#include <set>

#include "dtensor/tensor.h"
#include "internal/parameter_swap.h"

namespace dtensor {
namespace {

// Clamps the scale so that it and its inverse stay finite floats after any number of steps.
double within_floats(double scale) {
  constexpr double smallest = std::numeric_limits<float>::min();
  return std::clamp(scale, smallest, 1 / smallest);
}

using Ranks = std::vector<std::int64_t>;

Ranks sorted_ranks(const DeviceMesh& mesh) {
  Ranks ranks = mesh.ranks().vec();
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// The ranks that must agree: those of all meshes of the parameters, and the world if there are regular tensors.
struct Members {
  DeviceMesh given;                // Options::mesh: all ranks that must agree
  std::vector<DeviceMesh> meshes;  // each once
  bool regular = false;

  void add(const at::Tensor& tensor) {
    if (!is_dtensor(tensor)) {
      regular = true;
      return;
    }
    const DeviceMesh mesh = DTensor(tensor).mesh();
    if (given) check_within(mesh);
    if (std::find(meshes.begin(), meshes.end(), mesh) == meshes.end()) meshes.push_back(mesh);
  }

  void check_within(const DeviceMesh& mesh) const {
    const Ranks all = sorted_ranks(given), some = sorted_ranks(mesh);
    TORCH_CHECK(std::includes(all.begin(), all.end(), some.begin(), some.end()),
                "GradScaler: expected parameters on ranks of ", "the scaler's mesh ", given.str(), ", got one on ",
                mesh.str());
  }

  // The ranks that are connected to the first mesh by ranks that belong to two meshes.
  Ranks reached() const {
    Ranks all = sorted_ranks(meshes.front());
    for (std::size_t round = 1; round < meshes.size(); ++round) {
      for (const DeviceMesh& mesh : meshes) {
        const Ranks ranks = sorted_ranks(mesh);
        Ranks joined;
        std::set_union(all.begin(), all.end(), ranks.begin(), ranks.end(), std::back_inserter(joined));
        if (joined.size() < all.size() + ranks.size()) all = std::move(joined);
      }
    }
    return all;
  }
  Ranks all() const {
    std::set<std::int64_t> all;
    for (const DeviceMesh& mesh : meshes) all.insert(mesh.ranks().begin(), mesh.ranks().end());
    return {all.begin(), all.end()};
  }
};

void take_largest(const at::Tensor& found, const Communicator& ranks) {
  if (ranks.size() > 1) ranks.all_reduce(found, ReduceOp::max).wait();
}

// Maximum over all members. Ranks that belong to two meshes propagate values from one to the other; a chain of n meshes
// takes n rounds. So each rank may name only slices of its own. If meshes are not connected by common ranks, every rank
// must name all of them.
void agree(const at::Tensor& found, const Members& members) {
  if (members.given) {
    if (members.given.is_member()) take_largest(found, members.given.communicator());
    return;
  }
  if (members.meshes.empty()) return;
  const DeviceMesh& first = members.meshes.front();
  const Ranks all = members.all();
  const auto count = static_cast<std::int64_t>(all.size());
  if (members.regular && count < first.world().size()) return take_largest(found, first.world());
  if (members.reached() != all) {
    if (!std::binary_search(all.begin(), all.end(), first.world().rank())) return;
    return take_largest(found, device_mesh(first.world(), first.device_type(), all, {count}).communicator());
  }
  for (std::size_t round = 0; round < members.meshes.size(); ++round) {
    for (const DeviceMesh& mesh : members.meshes) {
      if (mesh.is_member()) take_largest(found, mesh.communicator());
    }
  }
}

constexpr float kRefused = 2;  // value of found-inf for an invalid argument; 1: a gradient that is not finite

// The local gradient; undefined outside the mesh. Partial gradients are refused: summands may be finite although their
// sum is not.
at::Tensor local_gradient(const at::Tensor& gradient) {
  if (!is_dtensor(gradient)) return gradient;
  const DTensor d(gradient);
  for (const Placement& p : d.placements()) {
    TORCH_CHECK(!p.is_partial(), "GradScaler: a gradient is not reduced: expected no Partial placement, got ",
                d.spec_str(), "; unscale after a backward pass that synchronizes gradients");
  }
  return d.mesh().is_member() ? d.to_local() : at::Tensor();
}

void multiply(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& locals, double factor) {
  for (const at::Tensor& p : parameters) {
    const at::Tensor& gradient = p.grad();
    if (!is_dtensor(gradient) || gradient.is_inference()) continue;
    gradient.unsafeGetTensorImpl()->bump_version();  // detected if autograd saved it
  }
  if (!locals.empty()) at::_foreach_mul_(locals, factor);
}

// Returns whether all gradients are finite. If one rank finds an invalid gradient, all ranks throw, although others may
// have no part of it. No gradient is changed then, so it can be unscaled later.
bool unscale(const std::vector<at::Tensor>& parameters, double inverse, const DeviceMesh& mesh) {
  const at::NoGradGuard no_grad;
  const NoMeshScopeGuard regular;
  Members members{mesh, {}};
  std::vector<at::Tensor> locals;
  std::exception_ptr refused;
  try {
    for (const at::Tensor& p : parameters) members.add(p.grad().defined() ? p.grad() : p);
    for (const at::Tensor& p : parameters) {
      const at::Tensor local = p.grad().defined() ? local_gradient(p.grad()) : at::Tensor();
      if (local.defined()) locals.push_back(local);
    }
  } catch (const c10::Error&) {
    refused = std::current_exception();
  }
  const auto device = !locals.empty()          ? locals.front().device()
                      : mesh                   ? c10::Device(mesh.device_type())
                      : members.meshes.empty() ? c10::Device(at::kCPU)
                                               : c10::Device(members.meshes.front().device_type());
  const auto options = at::TensorOptions(at::kFloat).device(device);
  at::Tensor found = at::full({1}, refused ? kRefused : 0, options);
  if (!refused && !locals.empty()) {  // a factor of 1 leaves the values unchanged
    at::_amp_foreach_non_finite_check_and_unscale_(locals, found, at::ones({1}, options));
  }
  agree(found, members);
  if (refused) std::rethrow_exception(refused);
  const float most = found.item<float>();
  TORCH_CHECK(most < kRefused, "GradScaler: another rank has a gradient that is not reduced, or a parameter outside ",
              "the scaler's mesh; the error of that rank names it");
  multiply(parameters, locals, inverse);
  return most == 0;
}

}  // namespace

GradScaler::GradScaler(const Options& options)
    : options_(options), state_{options.enabled ? options.init_scale : 1, 0} {
  TORCH_CHECK(
      options.growth_factor > 1 && options.backoff_factor < 1 && options.backoff_factor > 0 &&
          options.growth_interval > 0 && options.init_scale > 0 && std::isfinite(options.init_scale),
      "GradScaler: expected init_scale > 0, growth_factor > 1, growth_interval > 0 and backoff_factor in (0, 1), got ",
      options.init_scale, ", ", options.growth_factor, ", ", options.growth_interval, " and ", options.backoff_factor);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  if (!options_.enabled) return loss;
  // In half precision, a product with 65536 would overflow.
  const bool half = loss.scalar_type() == at::kHalf || loss.scalar_type() == at::kBFloat16;
  return (half ? loss.to(at::kFloat) : loss) * state_.scale;
}

void GradScaler::set_state(State state) {
  TORCH_CHECK(state.scale > 0 && std::isfinite(state.scale) && state.good_steps >= 0,
              "GradScaler: expected a state with scale > 0 and good_steps >= 0, got ", state.scale, " and ",
              state.good_steps);
  state_ = state;
}

// The result for an empty list is stored under null: with options.mesh it is the result of the other ranks.
bool GradScaler::unscale_(const std::vector<at::Tensor>& parameters) {
  const std::vector<at::Tensor> once = unique_tensors(parameters);
  for (const at::Tensor& p : once) {
    TORCH_CHECK(!unscaled_.contains(p.unsafeGetTensorImpl()),
                "GradScaler: expected update() between calls of unscale_ for ",
                "a parameter, got a second call for one of sizes ", p.sizes());
  }
  const bool finite = !options_.enabled || unscale(once, 1 / state_.scale, options_.mesh);
  for (const at::Tensor& p : once) unscaled_.emplace(p.unsafeGetTensorImpl(), finite);
  if (once.empty()) unscaled_.try_emplace(nullptr, true).first->second &= finite;
  return finite;
}

bool GradScaler::step(const std::vector<at::Tensor>& parameters, const std::function<void()>& step) {
  std::vector<at::Tensor> rest;
  for (const at::Tensor& p : parameters) {
    if (!unscaled_.contains(p.unsafeGetTensorImpl())) rest.push_back(p);
  }
  const bool any = !parameters.empty();
  if (any ? !rest.empty() : !unscaled_.contains(nullptr)) unscale_(rest);
  const bool finite = std::all_of(parameters.begin(), parameters.end(),
                                  [&](const at::Tensor& p) { return unscaled_.at(p.unsafeGetTensorImpl()); });
  if (!finite || (!any && !unscaled_.at(nullptr))) return false;
  step();
  return true;
}

void GradScaler::update() {
  const bool any = !unscaled_.empty();
  const bool finite = std::all_of(unscaled_.begin(), unscaled_.end(), [](const auto& entry) { return entry.second; });
  unscaled_.clear();
  if (!options_.enabled || !any) return;
  if (!finite) {
    state_ = {within_floats(state_.scale * options_.backoff_factor), 0};
  } else if (++state_.good_steps >= options_.growth_interval) {  // may exceed it after set_state()
    state_ = {within_floats(state_.scale * options_.growth_factor), 0};
  }
}

}  // namespace dtensor
