// The registry of a module: tensors and children by name, in the order of registration.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "dtensor/nn/module.h"

namespace dtensor::nn {
namespace {

std::string join(const std::string& prefix, const std::string& name) {
  if (prefix.empty() || name.empty()) return prefix.empty() ? name : prefix;
  return prefix + "." + name;
}

template <class List>
void check_new(const List& list, const std::string& name) {
  TORCH_CHECK(!name.empty() && std::none_of(list.begin(), list.end(), [&](const auto& x) { return x.first == name; }),
              "expected a non-empty name that the module has not registered, got '", name, "'");
}

}  // namespace

Module::Module() : points_{{"in", {}}, {"out", {}}} {}
Module::~Module() = default;

void Module::register_parameter(std::string name, at::Tensor& member) {
  check_new(parameters_, name);
  if (member.defined()) member.requires_grad_();
  parameters_.emplace_back(std::move(name), &member);
}

void Module::register_buffer(std::string name, at::Tensor& member) {
  check_new(buffers_, name);
  buffers_.emplace_back(std::move(name), &member);
}

void Module::register_module(std::string name, Module& child) {
  check_new(children_, name);
  child.name_ = name;
  children_.emplace_back(std::move(name), &child);
}

void Module::register_activation(std::string point) {
  check_new(points_, point);
  points_.emplace_back(std::move(point), nullptr);
}

std::vector<std::pair<std::string, Module*>> Module::named_modules(const std::string& prefix) {
  std::vector<std::pair<std::string, Module*>> list{{prefix, this}};
  for (const auto& [name, child] : children_) {
    auto below = child->named_modules(join(prefix, name));
    list.insert(list.end(), below.begin(), below.end());
  }
  return list;
}

NamedTensors Module::named_parameters(const std::string& prefix) {
  NamedTensors list;
  for (const auto& [path, module] : named_modules(prefix)) {
    for (const auto& [name, tensor] : module->parameters_) {
      if (tensor->defined()) list.emplace_back(join(path, name), tensor);
    }
  }
  return list;
}

NamedTensors Module::named_buffers(const std::string& prefix) {
  NamedTensors list;
  for (const auto& [path, module] : named_modules(prefix)) {
    for (const auto& [name, tensor] : module->buffers_) {
      if (tensor->defined()) list.emplace_back(join(path, name), tensor);
    }
  }
  return list;
}

std::vector<at::Tensor> Module::parameters() {
  std::vector<at::Tensor> list;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& [name, tensor] : named_parameters()) {
    if (seen.insert(tensor->unsafeGetTensorImpl()).second) list.push_back(*tensor);
  }
  return list;
}

Module& Module::train(bool on) {
  for (const auto& [name, module] : named_modules()) module->training_ = on;
  return *this;
}

void Module::reset() {
  for (const auto& [name, module] : named_modules()) module->reset_parameters();
}

void Module::reset_uniform(const at::Tensor& tensor, std::int64_t inputs) {
  if (!tensor.defined() || tensor.is_meta()) return;
  const at::NoGradGuard no_grad;
  const double bound = inputs > 0 ? 1 / std::sqrt(static_cast<double>(inputs)) : 0;
  tensor.uniform_(-bound, bound);
}

void Module::reset_to(const at::Tensor& tensor, double value) {
  if (!tensor.defined() || tensor.is_meta()) return;
  const at::NoGradGuard no_grad;
  tensor.fill_(value);
}

std::int64_t Module::output_dim(const std::string&) const { return 0; }
std::int64_t Module::input_dim(const std::string&) const { return 1; }

std::vector<std::string> Module::activation_points() const {
  std::vector<std::string> names;
  for (const auto& [name, constraint] : points_) names.push_back(name);
  return names;
}

void Module::set_constraint(const std::string& point, Constraint constraint) {
  own_constraint(point) = std::move(constraint);
}

const Module::Constraint& Module::constraint(const std::string& point) { return own_constraint(point); }

Module::Constraint& Module::own_constraint(const std::string& point) {
  for (auto& [name, own] : points_) {
    if (name == point) return own;
  }
  TORCH_CHECK(false, "module '", name_, "' has no activation point '", point, "'; it has ",
              c10::Join(", ", activation_points()));
}

void Module::register_call_hook(CallHook hook) { call_hooks_.push_back(std::move(hook)); }

Module::Call::Call(const Module& module, bool hooks)
    : module_(module), runs_hooks_(hooks && !module.call_hooks_.empty()), scope_(module.name_) {}

Module::Call::~Call() {
  while (!leave_hooks_.empty()) leave_hooks_.pop_back();
}

bool Module::Call::needs_tensors() const {
  return runs_hooks_ || module_.points_[0].second || module_.points_[1].second;
}

void Module::Call::enter(const TensorSlots& inputs) {
  if (!inputs.empty()) *inputs[0] = module_.constrain("in", *inputs[0]);
  if (!runs_hooks_) return;
  for (const CallHook& hook : module_.call_hooks_) leave_hooks_.push_back(hook(inputs));
}

void Module::Call::leave(const TensorSlots& outputs) {
  if (!outputs.empty()) *outputs[0] = module_.constrain("out", *outputs[0]);
  for (; !leave_hooks_.empty(); leave_hooks_.pop_back()) {
    if (leave_hooks_.back()) leave_hooks_.back()(outputs);
  }
}

at::Tensor Module::constrain(const char* point, const at::Tensor& x) const {
  for (const auto& [name, constraint] : points_) {
    if (name == point) return constraint ? constraint(x) : x;
  }
  TORCH_CHECK(false, "module '", name_, "' uses the activation point '", point, "' without registering it");
}

}  // namespace dtensor::nn
