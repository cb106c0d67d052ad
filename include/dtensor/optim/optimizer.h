// Base classes of optimizers: parameter groups of regular tensors and DTensors on any combination of meshes, optimizer
// steps, and state dicts. Also learning rate schedules.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dtensor/export.h"

namespace dtensor {

// A list of (name, tensor).
using StateTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Optimizer state for checkpoints. Names are `<parameter>.<what>` and `group<i>.<what>`. State tensors are on the
// parameter's mesh; those with the parameter's shape also have its placements.
struct OptimizerState {
  using Scalars = std::vector<std::pair<std::string, double>>;  // (name, number)
  // Tensors such as moments; step counts and learning rates.
  StateTensors tensors;
  Scalars scalars;
};

// Targets for loading a state: new tensors to fill, and a function that moves them into the optimizer.
struct StateTargets {
  StateTensors tensors;          // on the parameter's mesh, with the placements that the optimizer uses
  std::function<void()> commit;  // collective if state_dict() is; the optimizer changes only here
};

namespace detail {

// Checks and returns a saved step count. Throws if it is missing or invalid.
DTENSOR_API std::int64_t step_count(const std::string& name, std::optional<double> saved);

}  // namespace detail

// All ranks must create the same optimizer with the same list of parameters, including those on meshes without this
// rank. All ranks must call the same methods in the same order.
class DTENSOR_API Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Updates all parameters that have a gradient; other parameters and their state do not change. Throws if such a
  // parameter was replaced in its model: create the optimizer after fully_shard and parallelize, which replace
  // parameters. Warns once if no parameter has a gradient.
  virtual void step() = 0;
  virtual std::vector<at::Tensor> parameters() const = 0;  // in order of the groups

  // Parameter groups and their learning rates.
  virtual std::size_t group_count() const = 0;
  virtual double lr(std::size_t group = 0) const = 0;
  virtual void set_lr(std::size_t group, double lr) = 0;
  void set_lr(double lr);  // of all groups

  // The state of a parameter by name; empty before its first step. Tensors alias the optimizer's state, except state
  // owned by a single rank, which is gathered (collective over the parameter's mesh).
  virtual StateTensors state(const at::Tensor& parameter) const = 0;
  // Collective if state() is.
  virtual OptimizerState state_dict() const = 0;
  // Targets for a state dict with these scalars and the tensors for which `saved` returns true. Throws for names that
  // no parameter has.
  using Saved = std::function<bool(const std::string& name)>;
  virtual StateTargets state_targets(const OptimizerState::Scalars& scalars, const Saved& saved) = 0;
  // Throws the errors of step() that can be detected in advance, from options, gradients and state. Changes nothing and
  // does not communicate.
  virtual void check_step() const {}
  // Loads a state of the same parameters from any layout: DTensors on the parameter's mesh with any placements, or full
  // regular tensors. Throws for missing names, other shapes and state that this optimizer does not have.
  void load_state_dict(const OptimizerState& state);

  // Resets the gradients to undefined or to zeros.
  void zero_grad(bool set_to_none = true);
};

// Combines several optimizers (for instance Muon for matrices and AdamW for the rest). Each parameter belongs to one of
// them. check_step() of all parts runs before the first part steps.
class DTENSOR_API CombinedOptimizer final : public Optimizer {
 public:
  explicit CombinedOptimizer(std::vector<std::unique_ptr<Optimizer>> parts);

  void step() override;
  void check_step() const override;
  std::vector<at::Tensor> parameters() const override;
  std::size_t group_count() const override;
  double lr(std::size_t group = 0) const override;
  using Optimizer::set_lr;
  void set_lr(std::size_t group, double lr) override;
  StateTensors state(const at::Tensor& parameter) const override;
  OptimizerState state_dict() const override;  // prefixed with the index of the part: `0.`, `1.`, ...
  StateTargets state_targets(const OptimizerState::Scalars& scalars, const Saved& saved) override;

  // One of the combined optimizers.
  Optimizer& part(std::size_t index) { return *parts_.at(index); }

 private:
  std::pair<Optimizer*, std::size_t> owner_of_group(std::size_t group) const;

  std::vector<std::unique_ptr<Optimizer>> parts_;
};

// Parameters with common options. Invalid options (negative, NaN, a decay of 1) throw when the optimizer is created and
// in step(). The learning rate is checked at creation only, because schedules may round it below zero.
template <class Options>
struct ParameterGroup {
  std::vector<at::Tensor> parameters;  // floating-point leaves, no Partial placements
  // Options of the group.
  Options options = {};
  std::vector<std::string> names = {};  // unique names for saved state; default: index over all groups
};

namespace detail {

// One entry per parameter with a step count and named slots. Slots have the
// parameter's shape and placements and are created at its first step.
class DTENSOR_API SlotOptimizer : public Optimizer {
 public:
  // A parameter and its state.
  struct Entry {
    // Name for saved state, parameter, index of its group, number of steps.
    std::string name;
    at::Tensor parameter;
    std::size_t group = 0;
    std::int64_t steps = 0;
    std::vector<at::Tensor> slots;      // one per slot name; undefined before the first step
    at::ScalarType dtype = at::kFloat;  // dtype of the slots
  };

  void step() final;  // without recording gradients
  void check_step() const final;
  std::vector<at::Tensor> parameters() const override;
  StateTensors state(const at::Tensor& parameter) const override;
  OptimizerState state_dict() const override;
  StateTargets state_targets(const OptimizerState::Scalars& scalars, const Saved& saved) override;

 protected:
  // `wide`: float state for half-precision parameters.
  explicit SlotOptimizer(std::vector<std::string> slot_names, bool wide = false)
      : slot_names_(std::move(slot_names)), wide_(wide) {}
  void add_parameters(std::size_t group, const std::vector<at::Tensor>& parameters,
                      const std::vector<std::string>& names);

  // `active`: entries with a gradient in order, with incremented step counts.
  virtual void update(const std::vector<Entry*>& active) = 0;
  // Throws if options that changed since creation are invalid.
  virtual void check_options() const {}
  // Saves state other than slots for one entry, with names that begin with `prefix`.
  virtual void save_extra_state(const Entry& /*entry*/, const std::string& /*prefix*/,
                                OptimizerState& /*state*/) const {}
  // Adds targets for this state, and commits that store it. `steps`: step count in the saved state.
  virtual void extra_state_targets(Entry& /*entry*/, std::int64_t /*steps*/, const std::string& /*prefix*/,
                                   StateTensors& /*tensors*/, std::vector<std::function<void()>>& /*commits*/) {}
  // Whether this slot must be saved for each parameter that has taken a step.
  virtual bool is_slot_required(const Entry& /*entry*/, std::size_t /*slot*/) const { return true; }

  // In order of the groups.
  const std::vector<Entry>& entries() const { return entries_; }
  std::vector<Entry>& entries() { return entries_; }

 private:
  StateTensors slots_of(const Entry& entry, const std::string& prefix) const;
  std::vector<at::Tensor> slot_targets(const Entry& entry, std::int64_t steps, const Saved& saved,
                                       StateTensors& tensors) const;
  // Returns 0 for a parameter without state.
  std::int64_t saved_steps(const Entry& entry, std::optional<double> count, const Saved& saved) const;
  void check_known(const OptimizerState::Scalars& scalars) const;

  std::vector<std::string> slot_names_;
  void warn_without_gradients();

  bool wide_, warned_ = false;
  std::vector<Entry> entries_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> index_;
};

}  // namespace detail

// Base class of this library's optimizers, whose groups have options with a learning rate `lr`.
template <class Options>
class GroupOptimizer : public detail::SlotOptimizer {
 public:
  // Parameter group of this optimizer.
  using Group = ParameterGroup<Options>;
  // Validation of the options of a group.
  struct Validator {
    const char* optimizer = nullptr;          // name for error messages
    void (*check)(const Options&) = nullptr;  // throws if options other than lr are invalid
  };

  // See Optimizer.
  std::size_t group_count() const override { return options_.size(); }
  double lr(std::size_t group = 0) const override { return options_.at(group).lr; }
  using Optimizer::set_lr;
  void set_lr(std::size_t group, double lr) override { options_.at(group).lr = lr; }
  // Changes take effect in the next step. Options that determine the shape of state (block size) must not change.
  Options& options(std::size_t group = 0) { return options_.at(group); }
  const Options& options(std::size_t group = 0) const { return options_.at(group); }

 protected:
  // `slot_names` and `wide` (float state for half-precision parameters) as in SlotOptimizer. If `rules` has a check,
  // options are checked here (including lr) and in each step.
  GroupOptimizer(const std::vector<Group>& groups, std::vector<std::string> slot_names, bool wide = false,
                 Validator rules = {})
      : SlotOptimizer(std::move(slot_names), wide), rules_(rules) {
    for (const Group& group : groups) {
      add_parameters(options_.size(), group.parameters, group.names);
      options_.push_back(group.options);
    }
    if (rules_.check == nullptr) return;
    for (const Options& options : options_) {
      TORCH_CHECK_VALUE(options.lr >= 0, rules_.optimizer, ": lr must be >= 0, got ", options.lr);
    }
    GroupOptimizer::check_options();
  }
  void check_options() const override {
    if (rules_.check == nullptr) return;
    for (const Options& options : options_) rules_.check(options);
  }

 private:
  Validator rules_;
  std::vector<Options> options_;
};

// A learning rate schedule as a function of the step only, so that training can resume at any step with any number of
// ranks.
//
//   const LearningRate rate = LearningRate::cosine(3e-4, 900).after_warmup(100);  // 1000 steps
//   optimizer.set_lr(rate(step));

// The learning rate of each step, for Optimizer::set_lr().
class DTENSOR_API LearningRate {
 public:
  using Function = std::function<double(std::int64_t step)>;  // steps count from 0
  explicit LearningRate(Function rate);                       // a user-defined schedule

  // The same rate at all steps.
  static LearningRate constant(double lr);
  // Decays from lr at step 0 to `last` at step `steps` and stays there: linearly, or by half a cosine period
  // (Loshchilov and Hutter, arXiv:1608.03983).
  static LearningRate linear(double lr, std::int64_t steps, double last = 0);
  static LearningRate cosine(double lr, std::int64_t steps, double last = 0);
  // Warmup-stable-decay (Hu et al., arXiv:2404.06395): lr up to `decay` steps before the end, then linear decay.
  static LearningRate wsd(double lr, std::int64_t steps, std::int64_t decay, double last = 0);

  // Linear warmup over the first `steps` steps, from 1 / (steps + 1) of this schedule's first value; then this schedule
  // from its start.
  LearningRate after_warmup(std::int64_t steps) const;

  double operator()(std::int64_t step) const;

 private:
  Function rate_;
};

}  // namespace dtensor
