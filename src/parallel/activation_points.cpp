// Redistributes activations to the placements of a plan, and their gradients likewise.
#include <ATen/ATen.h>

#include <algorithm>

#include "dtensor/debug.h"
#include "dtensor/hooks.h"
#include "dtensor/parallelize.h"
#include "dtensor/tensor.h"
#include "internal/gradient_hooks.h"
#include "internal/saved_activation.h"
#include "internal/scoped_value.h"
#include "parallel/parallel_model.h"

namespace dtensor {
namespace {

// Regular tensors count as Replicate.
DTensor on_mesh(const at::Tensor& x, const DeviceMesh& mesh) {
  if (is_dtensor(x)) return DTensor(x);
  return distribute_tensor(x, mesh, Placements(static_cast<std::size_t>(mesh.ndim())));
}

Placement normalized(Placement placement, const at::Tensor& x) {
  if (!placement.is_shard()) return placement;
  const std::int64_t dim = placement.dim() < 0 ? placement.dim() + x.dim() : placement.dim();
  TORCH_CHECK(dim >= 0 && dim < x.dim(), "constrain: expected a shard dimension in [", -x.dim(), ", ", x.dim(),
              "), got ", placement.str());
  return placement.with_dim(dim);
}

Placements with_axis(const DTensor& x, std::size_t axis, Placement placement) {
  Placements placements = x.placements();
  placements[axis] = normalized(placement, x);
  return placements;
}

// The mesh for regular activations: the one that has the axes of all rules.
const DeviceMesh& largest_mesh(const std::vector<ActivationRule>& rules) {
  return std::max_element(rules.begin(), rules.end(),
                          [](const auto& a, const auto& b) { return a.mesh.ndim() < b.mesh.ndim(); })
      ->mesh;
}

}  // namespace

at::Tensor constrain(const at::Tensor& x, const Placements& placements) {
  TORCH_CHECK(is_dtensor(x), "constrain: expected a DTensor, got a regular tensor; convert it by distribute_tensor()");
  const DTensor input(x);
  Placements wanted = placements;
  for (Placement& p : wanted) p = normalized(p, x);
  if (wanted != input.placements()) return gather_activation(input, wanted);
  if (!x.requires_grad() || !at::GradMode::is_enabled()) return x;
  const at::Tensor result = at::alias(x);
  result.register_hook([gradient = gradient_placements(DTensor(result))](const at::Tensor& grad) -> at::Tensor {
    return is_dtensor(grad) ? DTensor(grad).redistribute(gradient) : grad;
  });
  return result;
}

at::Tensor constrain(const at::Tensor& x, const std::string& axis, Placement placement) {
  TORCH_CHECK(is_dtensor(x), "constrain: expected a DTensor, got a regular tensor; convert it by distribute_tensor()");
  return constrain(x, with_axis(DTensor(x), static_cast<std::size_t>(DTensor(x).mesh().dim(axis)), placement));
}

bool same_axis(const ActivationRule& a, const ActivationRule& b) {
  return a.axis_name == b.axis_name && (!a.axis_name.empty() || a.axis == b.axis);
}

void add_rule(std::vector<ActivationRule>& rules, const ActivationRule& rule) {
  std::erase_if(rules, [&](const ActivationRule& other) { return same_axis(other, rule); });
  rules.push_back(rule);
}

at::Tensor apply_rules(const std::vector<ActivationRule>& rules, const at::Tensor& x) {
  const DTensor input = on_mesh(x, largest_mesh(rules));
  const DeviceMesh mesh = input.mesh();
  Placements wanted = input.placements();
  bool pins_gradient = false, is_output = false;
  for (const ActivationRule& rule : rules) {
    const std::int64_t axis = mesh == rule.mesh ? rule.axis : mesh.dim(rule.axis_name);
    wanted[static_cast<std::size_t>(axis)] = normalized(rule.placement, input);
    pins_gradient |= rule.pins_gradient;
    is_output |= rule.is_output;
  }
  if (is_output && wanted != input.placements()) return input.redistribute(wanted);
  return pins_gradient ? constrain(input, wanted) : gather_activation(input, wanted);
}

namespace {

using StatePtr = std::shared_ptr<const ParallelModel::State>;

StatePtr current_state() {
  const auto* plan = ScopedValue<StatePtr>::current();
  return plan == nullptr ? nullptr : *plan;
}

StatePtr joined(std::vector<StatePtr> plans) {
  auto all = std::make_shared<ParallelModel::State>();
  for (const StatePtr& plan : plans) {
    all->parameters.insert(all->parameters.end(), plan->parameters.begin(), plan->parameters.end());
    all->activations.insert(all->activations.end(), plan->activations.begin(), plan->activations.end());
    for (const auto& [point, rules] : plan->rules) {
      for (const ActivationRule& rule : rules) add_rule(all->rules[point], rule);
    }
  }
  all->plans = std::move(plans);
  return all;
}

// Combines a plan with those of the enclosing scopes, as successive plans for an nn::Module combine.
StatePtr make_current(const StatePtr& plan) {
  if (!plan || !plan->plans.empty()) return plan;
  const StatePtr around = current_state();
  std::vector<StatePtr> plans = around ? around->plans : std::vector<StatePtr>();
  std::erase(plans, plan);
  plans.push_back(plan);
  return joined(std::move(plans));
}

}  // namespace

ParallelModel ParallelModel::current() { return ParallelModel(current_state()); }

ParallelModel::Scope::Scope(const ParallelModel& model)
    : scope_(open_scope(make_current(model.state_), Recompute::restored)) {}

at::Tensor constrain(const char* point, const at::Tensor& x) {
  const auto* plan = ScopedValue<StatePtr>::current();
  if (plan == nullptr || *plan == nullptr) return x;
  const std::string path = ModuleScope::path();
  const auto found = (*plan)->rules.find(path.empty() ? point : path + "." + point);
  return found == (*plan)->rules.end() ? x : apply_rules(found->second, x);
}

}  // namespace dtensor
