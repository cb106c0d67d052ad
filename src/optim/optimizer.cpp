// Optimizer entries, their slots, and saving and loading of state.
#include "dtensor/optim/optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "dtensor/tensor.h"
#include "internal/aten_scopes.h"
#include "internal/host_work.h"
#include "internal/memory_kind.h"
#include "internal/parameter_swap.h"
#include "internal/wrapper_subclass.h"
#include "optim/parameter_lists.h"

namespace dtensor {
namespace {

void check_parameter(const at::Tensor& parameter, const std::string& name) {
  TORCH_CHECK(parameter.defined(), "optimizer: parameter ", name, " is undefined");
  TORCH_CHECK(parameter.is_leaf(), "optimizer: parameter ", name,
              " is not a leaf, so it has no .grad; pass the leaf tensor");
  TORCH_CHECK(at::isFloatingType(parameter.scalar_type()), "optimizer: parameter ", name, " has dtype ",
              parameter.scalar_type(), "; expected a floating point dtype");
  const at::NoGradGuard no_grad;
  const bool has_local = is_dtensor(parameter) && DTensor(parameter).mesh().is_member();
  TORCH_CHECK_NOT_IMPLEMENTED(!is_wrapper_subclass(has_local ? DTensor(parameter).to_local() : parameter),
                              "optimizer: expected a parameter with memory, got the wrapper subclass ", name,
                              "; use an optimizer of torch.optim");
  if (!is_dtensor(parameter)) return;
  for (const Placement& p : DTensor(parameter).placements()) {
    TORCH_CHECK(!p.is_partial(), "optimizer: parameter ", name, " is ", DTensor(parameter).spec_str(),
                "; Partial parameters cannot be optimized, redistribute it first");
  }
}

// Copies with the mesh and placements of the target.
void copy_into(const at::Tensor& target, const at::Tensor& value, const std::string& name) {
  TORCH_CHECK(value.sizes() == target.sizes(), "load_state_dict: ", name, " has sizes ", value.sizes(), ", expected ",
              target.sizes(), " (was it saved by another model, or with another block size?)");
  if (is_dtensor(target)) {
    const DTensor t(target);
    target.copy_(distribute_tensor(value, t.mesh(), t.placements()));
  } else {
    target.copy_(is_dtensor(value) ? DTensor(value).full_tensor() : value);
  }
}

template <class Value>
std::unordered_map<std::string, Value> by_name(const std::vector<std::pair<std::string, Value>>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

void Optimizer::set_lr(double lr) {
  for (std::size_t group = 0; group < group_count(); ++group) set_lr(group, lr);
}

void Optimizer::zero_grad(bool set_to_none) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters()) {
    if (!parameter.grad().defined()) continue;
    if (set_to_none) {
      parameter.mutable_grad().reset();
    } else {
      at::Tensor& gradient = parameter.mutable_grad();
      gradient.grad_fn() ? gradient.detach_()
                         : gradient.requires_grad_(false);  // views of a bucket do not support detach_()
      gradients.push_back(gradient);
    }
  }
  if (!gradients.empty()) at::_foreach_zero_(gradients);
}

void Optimizer::load_state_dict(const OptimizerState& state) {
  const at::NoGradGuard no_grad;
  auto tensors = by_name(state.tensors);
  const StateTargets targets =
      state_targets(state.scalars, [&](const std::string& name) { return tensors.contains(name); });
  for (const auto& [name, target] : targets.tensors) {
    const auto found = tensors.extract(name);
    TORCH_CHECK(!found.empty(), "load_state_dict: ", name, " is missing");
    copy_into(target, found.mapped(), name);
  }
  std::vector<std::string> unknown;
  for (const auto& [name, tensor] : state.tensors) {
    if (tensors.contains(name)) unknown.push_back(name);
  }
  TORCH_CHECK(unknown.empty(), "load_state_dict: the state has ", c10::Join(", ", unknown),
              ", which this optimizer does not use (was it saved by another optimizer, or with other options?)");
  targets.commit();
}

std::int64_t detail::step_count(const std::string& name, std::optional<double> saved) {
  TORCH_CHECK(saved, "load_state_dict: ", name, " is missing among the scalars; it is required to load the ",
              "state of a parameter");
  constexpr auto kMost = static_cast<double>(std::int64_t{1} << 53);  // above, doubles cannot represent all integers
  TORCH_CHECK(*saved >= 0 && *saved <= kMost && *saved == std::floor(*saved), "load_state_dict: ", name, " is ", *saved,
              ", expected an integer >= 0");
  return static_cast<std::int64_t>(*saved);
}

void detail::SlotOptimizer::add_parameters(std::size_t group, const std::vector<at::Tensor>& parameters,
                                           const std::vector<std::string>& names) {
  TORCH_CHECK(names.empty() || names.size() == parameters.size(), "optimizer: ", names.size(),
              " names, expected one for each of ", parameters.size(), " parameters");
  std::unordered_set<std::string> known;
  for (const Entry& entry : entries_) known.insert(entry.name);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    std::string name = names.empty() ? std::to_string(entries_.size()) : names[i];
    check_parameter(parameters[i], name);
    const bool fresh = index_.emplace(parameters[i].unsafeGetTensorImpl(), entries_.size()).second;
    TORCH_CHECK(fresh, "optimizer: parameter ", name, " is listed twice; list tied weights once");
    TORCH_CHECK(known.insert(name).second, "optimizer: the name ", name,
                " is used by two parameters; expected unique names (by default the ", "index is the name)");
    const auto dtype = parameters[i].scalar_type();
    const bool half = dtype == at::kHalf || dtype == at::kBFloat16;
    entries_.push_back({std::move(name), parameters[i], group, 0, std::vector<at::Tensor>(slot_names_.size()),
                        wide_ && half ? at::kFloat : dtype});
  }
}

void detail::SlotOptimizer::step() {
  const LocalNoGradGuard scope;
  const MemoryKindScope states(MemoryKind::optimizer_state);
  const HostWorkScope host(parameters());
  std::vector<Entry*> active;
  for (Entry& entry : entries_) {
    if (entry.parameter.grad().defined()) active.push_back(&entry);
  }
  check_step();
  if (active.empty()) warn_without_gradients();
  for (Entry* entry : active) ++entry->steps;
  try {
    if (!active.empty()) update(active);
  } catch (...) {  // a step that throws does not count, so that bias corrections stay right
    for (Entry* entry : active) --entry->steps;
    throw;
  }
}

void detail::SlotOptimizer::check_step() const {
  check_options();
  for (const Entry& entry : entries_) {
    if (entry.parameter.grad().defined()) {
      optim::check_entry(entry);
      continue;
    }
    TORCH_CHECK(!is_swapped_out(entry.parameter), "optimizer: parameter ", entry.name, " of sizes ",
                entry.parameter.sizes(), " was replaced by a DTensor in its model after the optimizer was created, ",
                "so step() would not train the model; create the optimizer after fully_shard and parallelize");
  }
}

void detail::SlotOptimizer::warn_without_gradients() {
  const bool any_here = std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return !is_dtensor(entry.parameter) || DTensor(entry.parameter).mesh().is_member();
  });
  if (!any_here || std::exchange(warned_, true)) return;
  TORCH_WARN("optimizer: none of the ", entries_.size(), " parameters has a gradient, so this step changes nothing. ",
             "Call backward() first, and check that the optimizer has the parameters of the model.");
}

std::vector<at::Tensor> detail::SlotOptimizer::parameters() const {
  std::vector<at::Tensor> result;
  result.reserve(entries_.size());
  for (const Entry& entry : entries_) result.push_back(entry.parameter);
  return result;
}

StateTensors detail::SlotOptimizer::slots_of(const Entry& entry, const std::string& prefix) const {
  StateTensors result;
  for (std::size_t i = 0; i < slot_names_.size(); ++i) {
    if (entry.slots[i].defined()) result.emplace_back(prefix + slot_names_[i], entry.slots[i]);
  }
  return result;
}

StateTensors detail::SlotOptimizer::state(const at::Tensor& parameter) const {
  const LocalNoGradGuard scope;
  const auto found = index_.find(parameter.unsafeGetTensorImpl());
  TORCH_CHECK(found != index_.end(), "optimizer: state() expects a parameter of this optimizer, got another tensor");
  const Entry& entry = entries_[found->second];
  OptimizerState more;
  save_extra_state(entry, "", more);
  StateTensors result = slots_of(entry, "");
  result.insert(result.end(), more.tensors.begin(), more.tensors.end());
  return result;
}

OptimizerState detail::SlotOptimizer::state_dict() const {
  const LocalNoGradGuard scope;
  OptimizerState state;
  for (std::size_t g = 0; g < group_count(); ++g)
    state.scalars.emplace_back("group" + std::to_string(g) + ".lr", lr(g));
  for (const Entry& entry : entries_) {
    const bool any = std::any_of(entry.slots.begin(), entry.slots.end(), [](const auto& s) { return s.defined(); });
    if (entry.steps == 0 && !any) continue;  // torch::optim::SGD saves momenta without step counts
    state.scalars.emplace_back(entry.name + ".step", static_cast<double>(entry.steps));
    const StateTensors slots = slots_of(entry, entry.name + ".");
    state.tensors.insert(state.tensors.end(), slots.begin(), slots.end());
    save_extra_state(entry, entry.name + ".", state);
  }
  return state;
}

std::vector<at::Tensor> detail::SlotOptimizer::slot_targets(const Entry& entry, std::int64_t steps, const Saved& saved,
                                                            StateTensors& tensors) const {
  std::vector<at::Tensor> slots(slot_names_.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::string name = entry.name + "." + slot_names_[i];
    if (!saved(name) && (steps == 0 || !is_slot_required(entry, i))) continue;
    slots[i] = at::zeros_like(entry.parameter, entry.parameter.options().dtype(entry.dtype));
    tensors.emplace_back(name, slots[i]);
  }
  return slots;
}

std::int64_t detail::SlotOptimizer::saved_steps(const Entry& entry, std::optional<double> count,
                                                const Saved& saved) const {
  bool counted = count.has_value();
  for (std::size_t i = 0; i < slot_names_.size(); ++i) {
    counted = counted || (is_slot_required(entry, i) && saved(entry.name + "." + slot_names_[i]));
  }
  return counted ? detail::step_count(entry.name + ".step", count) : 0;
}

void detail::SlotOptimizer::check_known(const OptimizerState::Scalars& scalars) const {
  std::unordered_set<std::string> names;
  for (const Entry& entry : entries_) names.insert(entry.name + ".step");
  for (std::size_t g = 0; g < group_count(); ++g) names.insert("group" + std::to_string(g) + ".lr");
  std::vector<std::string> unknown;
  for (const auto& [name, value] : scalars) {
    if (!names.contains(name)) unknown.push_back(name);
  }
  TORCH_CHECK(unknown.empty(), "load_state_dict: the state has ", c10::Join(", ", unknown),
              ", which does not belong to a parameter or group of this optimizer");
}

StateTargets detail::SlotOptimizer::state_targets(const OptimizerState::Scalars& scalars, const Saved& saved) {
  const at::NoGradGuard no_grad;
  check_known(scalars);
  const auto numbers = by_name(scalars);
  const auto number = [&](const std::string& name) {
    const auto found = numbers.find(name);
    return found == numbers.end() ? std::optional<double>() : found->second;
  };
  StateTargets targets;
  std::vector<std::function<void()>> commits;
  for (std::size_t g = 0; g < group_count(); ++g) {
    if (const auto rate = number("group" + std::to_string(g) + ".lr")) {
      commits.emplace_back([this, g, rate] { set_lr(g, *rate); });
    }
  }
  for (Entry& entry : entries_) {
    const std::int64_t steps = saved_steps(entry, number(entry.name + ".step"), saved);
    commits.emplace_back([&entry, steps, slots = slot_targets(entry, steps, saved, targets.tensors)] {
      entry.steps = steps;
      entry.slots = slots;
    });
    extra_state_targets(entry, steps, entry.name + ".", targets.tensors, commits);
  }
  targets.commit = [commits = std::move(commits)] {
    for (const auto& commit : commits) commit();
  };
  return targets;
}

}  // namespace dtensor
