// Checkpointing of torch::optim's Adam, AdamW, SGD, Adagrad and RMSprop: their state under parameter names, loadable on
// any other mesh. The class is a template because the library does not link torch::optim; also include <torch/optim.h>.
#pragma once

#include <ATen/Functions.h>

#include <map>
#include <memory>
#include <optional>
#include <type_traits>

#include "dtensor/optim/optimizer.h"

namespace torch::optim {

class Adam;
class AdamW;
class SGD;
class Adagrad;
class RMSprop;
struct AdamParamState;
struct AdamWParamState;
struct SGDParamState;
struct AdagradParamState;
struct RMSpropParamState;

}  // namespace torch::optim

namespace dtensor {

namespace detail {

// Maps an optimizer of torch::optim to its state type. Optimizers without an entry cannot be saved.
template <class Optim>
struct TorchParamState;
template <>
struct TorchParamState<torch::optim::Adam> : std::type_identity<torch::optim::AdamParamState> {};
template <>
struct TorchParamState<torch::optim::AdamW> : std::type_identity<torch::optim::AdamWParamState> {};
template <>
struct TorchParamState<torch::optim::SGD> : std::type_identity<torch::optim::SGDParamState> {};
template <>
struct TorchParamState<torch::optim::Adagrad> : std::type_identity<torch::optim::AdagradParamState> {};
template <>
struct TorchParamState<torch::optim::RMSprop> : std::type_identity<torch::optim::RMSpropParamState> {};

template <class Model>
concept NamesParameters = requires(Model& model) {
  model.named_parameters();
};

// Calls visit(name, tensor) for each tensor of a state.
template <class State, class Visit>
void visit_tensors(State& state, const Visit& visit) {
  if constexpr (requires { state.exp_avg(); }) visit("exp_avg", state.exp_avg());
  if constexpr (requires { state.exp_avg_sq(); }) visit("exp_avg_sq", state.exp_avg_sq());
  if constexpr (requires { state.max_exp_avg_sq(); }) visit("max_exp_avg_sq", state.max_exp_avg_sq());
  if constexpr (requires { state.momentum_buffer(); }) visit("momentum_buffer", state.momentum_buffer());
  if constexpr (requires { state.sum(); }) visit("sum", state.sum());
  if constexpr (requires { state.square_avg(); }) visit("square_avg", state.square_avg());
  if constexpr (requires { state.grad_avg(); }) visit("grad_avg", state.grad_avg());
}

// State types that have a step count.
template <class State>
concept CountsSteps = requires(State& state) {
  state.step();
};

}  // namespace detail

// Adapter of `optimizer` for Checkpoint. The optimizer must outlive the adapter, and the adapter the Checkpoint:
//   TorchOptimizer saved(optimizer, *model);  // made after parallelize and fully_shard, as the optimizer is
//   Checkpoint state;
//   state.add("model", *model).add("optimizer", saved).add("step", step);
// Names are those of this library's optimizers: `<parameter>.exp_avg`, `<parameter>.step`, `group<i>.lr`. So
// torch::optim::AdamW can load a state of dtensor::AdamW and vice versa. Other options are not saved. Methods behave as
// documented in Optimizer, including which are collective.
template <class Optim>
class TorchOptimizer final : public Optimizer {
 public:
  // `names`: unique names of the parameters. Names of other tensors are ignored.
  TorchOptimizer(Optim& optimizer, const StateTensors& names) : optimizer_(optimizer) {
    std::map<const void*, std::string> known;
    for (const auto& [name, tensor] : names) known.try_emplace(tensor.unsafeGetTensorImpl(), name);
    for (auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        const auto found = known.find(parameter.unsafeGetTensorImpl());
        TORCH_CHECK(found != known.end(), "TorchOptimizer: parameter ", parameters_.size(), " of sizes ",
                    parameter.sizes(), " has no name; was the optimizer made before parallelize or fully_shard?");
        parameters_.emplace_back(found->second, parameter);
      }
    }
  }
  // Takes the names from a torch::nn::Module or a module of this library.
  template <detail::NamesParameters Model>
  TorchOptimizer(Optim& optimizer, Model& model) : TorchOptimizer(optimizer, names_of(model)) {}

  void step() override { optimizer_.step(); }
  std::vector<at::Tensor> parameters() const override {
    std::vector<at::Tensor> all;
    for (const auto& [name, parameter] : parameters_) all.push_back(parameter);
    return all;
  }
  std::size_t group_count() const override { return optimizer_.param_groups().size(); }
  double lr(std::size_t group = 0) const override { return optimizer_.param_groups().at(group).options().get_lr(); }
  using Optimizer::set_lr;
  void set_lr(std::size_t group, double lr) override { optimizer_.param_groups().at(group).options().set_lr(lr); }

  StateTensors state(const at::Tensor& parameter) const override {
    StateTensors tensors;
    if (auto* state = state_of(parameter)) add_tensors(*state, "", tensors);
    return tensors;
  }

  OptimizerState state_dict() const override {
    OptimizerState all;
    for (std::size_t g = 0; g < group_count(); ++g) all.scalars.emplace_back(rate_name(g), lr(g));
    for (const auto& [name, parameter] : parameters_) {
      auto* state = state_of(parameter);
      if (state == nullptr) continue;
      if constexpr (kCounts) {
        all.scalars.emplace_back(name + ".step", static_cast<double>(state->step()));
      }
      add_tensors(*state, name + ".", all.tensors);
    }
    return all;
  }

  StateTargets state_targets(const OptimizerState::Scalars& scalars, const Saved& saved) override {
    const at::NoGradGuard no_grad;
    std::map<std::string, double> numbers(scalars.begin(), scalars.end());
    StateTargets targets;
    std::vector<std::function<void()>> commits;
    for (std::size_t g = 0; g < group_count(); ++g) {
      if (const auto rate = numbers.extract(rate_name(g))) {
        commits.emplace_back([this, g, value = rate.mapped()] { set_lr(g, value); });
      }
    }
    for (const auto& [name, parameter] : parameters_) {
      const auto number = numbers.extract(name + ".step");
      const std::optional<double> steps = number.empty() ? std::nullopt : std::optional(number.mapped());
      auto state = fresh_state(name, parameter, saved, targets.tensors);
      if (state == nullptr) {
        TORCH_CHECK(!kCounts || steps.value_or(0) == 0, "load_state_dict: the state has ", name,
                    ".step, but none of the tensors that this optimizer keeps; was it saved by another one?");
        commits.emplace_back([this, parameter = parameter] {  // the parameter had no state when it was saved
          optimizer_.state().erase(parameter.unsafeGetTensorImpl());
        });
        continue;
      }
      if constexpr (kCounts) state->step(detail::step_count(name + ".step", steps));
      commits.emplace_back([this, parameter = parameter, state] {
        optimizer_.state()[parameter.unsafeGetTensorImpl()] = std::make_unique<State>(*state);
      });
    }
    TORCH_CHECK(numbers.empty(), "load_state_dict: the state has ", numbers.begin()->first,
                ", which belongs to no parameter or group here");
    targets.commit = [commits = std::move(commits)] {
      for (const auto& commit : commits) commit();
    };
    return targets;
  }

 private:
  using State = typename detail::TorchParamState<Optim>::type;
  static constexpr bool kCounts = detail::CountsSteps<State>;

  static std::string rate_name(std::size_t group) { return "group" + std::to_string(group) + ".lr"; }

  template <class Model>
  static StateTensors names_of(Model& model) {
    StateTensors names;
    for (const auto& item : model.named_parameters()) {
      if constexpr (requires { item.key(); }) {
        names.emplace_back(item.key(), item.value());
      } else {
        names.emplace_back(item.first, *item.second);
      }
    }
    return names;
  }

  State* state_of(const at::Tensor& parameter) const {
    const auto found = optimizer_.state().find(parameter.unsafeGetTensorImpl());
    return found == optimizer_.state().end() ? nullptr : static_cast<State*>(found->second.get());
  }

  static void add_tensors(State& state, const std::string& prefix, StateTensors& tensors) {
    detail::visit_tensors(state, [&](const char* name, at::Tensor& tensor) {
      if (tensor.defined()) tensors.emplace_back(prefix + name, tensor);
    });
  }

  // A new state with targets for the saved tensors; null if none was saved.
  std::shared_ptr<State> fresh_state(const std::string& name, const at::Tensor& parameter, const Saved& saved,
                                     StateTensors& targets) const {
    auto state = std::make_shared<State>();
    bool any = false;
    detail::visit_tensors(*state, [&](const char* what, at::Tensor& tensor) {
      if (!saved(name + "." + what)) return;
      tensor = at::zeros_like(parameter);
      targets.emplace_back(name + "." + what, tensor);
      any = true;
    });
    return any ? state : nullptr;
  }

  Optim& optimizer_;
  StateTensors parameters_;
};

}  // namespace dtensor
