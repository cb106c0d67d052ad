// Several optimizers as one: concatenated groups, names prefixed with the part's index.
#include <ATen/ATen.h>

#include <algorithm>
#include <unordered_set>

#include "dtensor/optim/optimizer.h"

namespace dtensor {
namespace {

template <class Value>
void append_prefixed(const std::string& prefix, std::vector<std::pair<std::string, Value>>&& from,
                     std::vector<std::pair<std::string, Value>>& to) {
  for (auto& [name, value] : from) to.emplace_back(prefix + name, std::move(value));
}

template <class Value>
void take_prefixed(const std::string& prefix, const std::vector<std::pair<std::string, Value>>& from,
                   std::vector<std::pair<std::string, Value>>& to) {
  for (const auto& [name, value] : from) {
    if (name.starts_with(prefix)) to.emplace_back(name.substr(prefix.size()), value);
  }
}

// Rejects names that no part would read, such as the state of a single optimizer.
void check_prefixes(const OptimizerState::Scalars& scalars, std::size_t parts) {
  std::vector<std::string> unknown;
  for (const auto& [name, value] : scalars) {
    bool known = false;
    for (std::size_t i = 0; i < parts; ++i) known |= name.starts_with(std::to_string(i) + ".");
    if (!known) unknown.push_back(name);
  }
  TORCH_CHECK(unknown.empty(), "load_state_dict: the state has ", c10::Join(", ", unknown),
              ", which does not belong to any of the ", parts,
              " optimizers; expected names that begin with the index of a part");
}

}  // namespace

CombinedOptimizer::CombinedOptimizer(std::vector<std::unique_ptr<Optimizer>> parts) : parts_(std::move(parts)) {
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& part : parts_) {
    TORCH_CHECK(part != nullptr, "CombinedOptimizer: expected non-null optimizers, got a null pointer");
    for (const at::Tensor& parameter : part->parameters()) {
      TORCH_CHECK(seen.insert(parameter.unsafeGetTensorImpl()).second, "CombinedOptimizer: a parameter of sizes ",
                  parameter.sizes(), " belongs to two parts");
    }
  }
}

void CombinedOptimizer::check_step() const {
  for (const auto& part : parts_) part->check_step();
}

void CombinedOptimizer::step() {
  check_step();
  for (const auto& part : parts_) part->step();
}

std::vector<at::Tensor> CombinedOptimizer::parameters() const {
  std::vector<at::Tensor> result;
  for (const auto& part : parts_) {
    const auto own = part->parameters();
    result.insert(result.end(), own.begin(), own.end());
  }
  return result;
}

std::size_t CombinedOptimizer::group_count() const {
  std::size_t count = 0;
  for (const auto& part : parts_) count += part->group_count();
  return count;
}

std::pair<Optimizer*, std::size_t> CombinedOptimizer::owner_of_group(std::size_t group) const {
  for (const auto& part : parts_) {
    if (group < part->group_count()) return {part.get(), group};
    group -= part->group_count();
  }
  TORCH_CHECK(false, "CombinedOptimizer: group index is out of range: there are ", group_count(), " groups");
}

double CombinedOptimizer::lr(std::size_t group) const {
  const auto [part, index] = owner_of_group(group);
  return part->lr(index);
}

void CombinedOptimizer::set_lr(std::size_t group, double lr) {
  const auto [part, index] = owner_of_group(group);
  part->set_lr(index, lr);
}

StateTensors CombinedOptimizer::state(const at::Tensor& parameter) const {
  for (const auto& part : parts_) {
    for (const at::Tensor& own : part->parameters()) {
      if (own.is_same(parameter)) return part->state(parameter);
    }
  }
  TORCH_CHECK(false, "CombinedOptimizer: state() expects a parameter of this optimizer, got another tensor");
}

OptimizerState CombinedOptimizer::state_dict() const {
  OptimizerState all;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    OptimizerState own = parts_[i]->state_dict();
    const std::string prefix = std::to_string(i) + ".";
    append_prefixed(prefix, std::move(own.tensors), all.tensors);
    append_prefixed(prefix, std::move(own.scalars), all.scalars);
  }
  return all;
}

StateTargets CombinedOptimizer::state_targets(const OptimizerState::Scalars& scalars, const Saved& saved) {
  check_prefixes(scalars, parts_.size());
  StateTargets all;
  std::vector<std::function<void()>> commits;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const std::string prefix = std::to_string(i) + ".";
    OptimizerState::Scalars own;
    take_prefixed(prefix, scalars, own);
    StateTargets part = parts_[i]->state_targets(own, [&](const std::string& name) { return saved(prefix + name); });
    append_prefixed(prefix, std::move(part.tensors), all.tensors);
    commits.push_back(std::move(part.commit));
  }
  all.commit = [commits = std::move(commits)] {
    for (const auto& commit : commits) commit();
  };
  return all;
}

}  // namespace dtensor
