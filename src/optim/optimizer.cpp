// Entries, their slots, and how they are saved and restored.
#include "dtensor/optim/optimizer.h"

#include <ATen/ATen.h>

#include "dtensor/tensor.h"

namespace dtensor {
namespace {

void check_parameter(const at::Tensor& parameter, const std::string& name) {
  TORCH_CHECK(parameter.defined(), "optimizer: parameter ", name, " is undefined");
  TORCH_CHECK(parameter.is_leaf(), "optimizer: parameter ", name, " is not a leaf; its gradient would not be kept");
  TORCH_CHECK(at::isFloatingType(parameter.scalar_type()), "optimizer: parameter ", name, " has dtype ",
              parameter.scalar_type(), "; only floating point can be trained");
  if (!is_dtensor(parameter)) return;
  for (const Placement& p : DTensor(parameter).placements()) {
    TORCH_CHECK(!p.is_partial(), "optimizer: parameter ", name, " is ", DTensor(parameter).spec_str(),
                "; a step on the parts of a sum is not a step on the sum. Redistribute it first");
  }
}

// Into the parameter's mesh and placements; a copy, which the optimizer may write.
at::Tensor placed_copy(const at::Tensor& value, const OptimizerEntry& entry, const std::string& name) {
  const at::Tensor& parameter = entry.parameter;
  TORCH_CHECK(value.sizes() == parameter.sizes(), "load_state_dict: ", name, " has sizes ", value.sizes(),
              " where the parameter has ", parameter.sizes());
  const at::NoGradGuard no_grad;
  at::Tensor own = at::zeros_like(parameter, parameter.options().dtype(entry.dtype));
  if (is_dtensor(parameter)) {
    const DTensor p(parameter);
    return own.copy_(distribute_tensor(value, p.mesh(), p.placements()));
  }
  return own.copy_(is_dtensor(value) ? DTensor(value).full_tensor() : value);
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
      parameter.mutable_grad().detach_();
      gradients.push_back(parameter.grad());
    }
  }
  if (!gradients.empty()) at::_foreach_zero_(gradients);
}

void SlotOptimizer::add_parameters(std::size_t group, const std::vector<at::Tensor>& parameters,
                                   const std::vector<std::string>& names) {
  TORCH_CHECK(names.empty() || names.size() == parameters.size(), "optimizer: ", names.size(), " names for ",
              parameters.size(), " parameters");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    std::string name = names.empty() ? std::to_string(entries_.size()) : names[i];
    check_parameter(parameters[i], name);
    const bool fresh = index_.emplace(parameters[i].unsafeGetTensorImpl(), entries_.size()).second;
    TORCH_CHECK(fresh, "optimizer: parameter ", name, " is there twice (tied weights are listed once)");
    const auto dtype = parameters[i].scalar_type();
    const bool half = dtype == at::kHalf || dtype == at::kBFloat16;
    entries_.push_back({std::move(name), parameters[i], group, 0, std::vector<at::Tensor>(slot_names_.size()),
                        wide_ && half ? at::kFloat : dtype});
  }
}

void SlotOptimizer::step() {
  const at::NoGradGuard no_grad;
  std::vector<Entry*> active;
  for (Entry& entry : entries_) {
    if (!entry.parameter.grad().defined()) continue;
    ++entry.steps;
    active.push_back(&entry);
  }
  if (!active.empty()) update(active);
}

std::vector<at::Tensor> SlotOptimizer::parameters() const {
  std::vector<at::Tensor> result;
  result.reserve(entries_.size());
  for (const Entry& entry : entries_) result.push_back(entry.parameter);
  return result;
}

StateTensors SlotOptimizer::slots_of(const Entry& entry, const std::string& prefix) const {
  StateTensors result;
  for (std::size_t i = 0; i < slot_names_.size(); ++i) {
    if (entry.slots[i].defined()) result.emplace_back(prefix + slot_names_[i], entry.slots[i]);
  }
  return result;
}

StateTensors SlotOptimizer::state(const at::Tensor& parameter) const {
  const auto found = index_.find(parameter.unsafeGetTensorImpl());
  TORCH_CHECK(found != index_.end(), "optimizer: asked for the state of a tensor that is not among its parameters");
  const Entry& entry = entries_[found->second];
  OptimizerState more;
  save_more(entry, "", more);
  StateTensors result = slots_of(entry, "");
  result.insert(result.end(), more.tensors.begin(), more.tensors.end());
  return result;
}

OptimizerState SlotOptimizer::state_dict() const {
  OptimizerState state;
  for (std::size_t g = 0; g < group_count(); ++g)
    state.scalars.emplace_back("group" + std::to_string(g) + ".lr", lr(g));
  for (const Entry& entry : entries_) {
    if (entry.steps == 0) continue;
    state.scalars.emplace_back(entry.name + ".step", static_cast<double>(entry.steps));
    const StateTensors slots = slots_of(entry, entry.name + ".");
    state.tensors.insert(state.tensors.end(), slots.begin(), slots.end());
    save_more(entry, entry.name + ".", state);
  }
  return state;
}

void SlotOptimizer::load_slots(Entry& entry, const Finder& tensors) {
  for (std::size_t i = 0; i < slot_names_.size(); ++i) {
    const std::string name = entry.name + "." + slot_names_[i];
    const auto found = tensors.find(name);
    entry.slots[i] = found == tensors.end() ? at::Tensor() : placed_copy(found->second, entry, name);
  }
}

void SlotOptimizer::load_state_dict(const OptimizerState& state) {
  const Finder tensors = by_name(state.tensors);
  const auto scalars = by_name(state.scalars);
  for (std::size_t g = 0; g < group_count(); ++g) {
    const auto found = scalars.find("group" + std::to_string(g) + ".lr");
    if (found != scalars.end()) set_lr(g, found->second);
  }
  std::size_t stepped = 0;
  for (Entry& entry : entries_) {
    const auto found = scalars.find(entry.name + ".step");
    entry.steps = found == scalars.end() ? 0 : static_cast<std::int64_t>(found->second);
    stepped += entry.steps > 0 ? 1 : 0;
    load_slots(entry, tensors);
    load_more(entry, entry.name + ".", tensors);
  }
  const auto is_step = [](const auto& s) { return s.first.ends_with(".step"); };
  const auto saved = std::count_if(state.scalars.begin(), state.scalars.end(), is_step);
  TORCH_CHECK(static_cast<std::size_t>(saved) == stepped, "load_state_dict: the state of ", saved,
              " parameters was given, of which ", stepped, " are parameters here");
}

}  // namespace dtensor
