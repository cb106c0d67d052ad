// What all optimizers share: parameter groups over tensor handles (plain tensors and DTensors, on any mixture of
// meshes), steps over the parameters that have a gradient, and state that can be looked at, saved and restored.
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

// Names and tensors, names and numbers.
using StateTensors = std::vector<std::pair<std::string, at::Tensor>>;
using StateScalars = std::vector<std::pair<std::string, double>>;

// All that a checkpoint needs to go on as if nothing had happened. Names are `<parameter>.<what>` and
// `group<i>.<what>`. Tensors that belong to a parameter have its mesh (those of its shape also its placements).
struct OptimizerState {
  // Moments and the like; counts and rates.
  StateTensors tensors;
  StateScalars scalars;
};

// Where a saved state is to be put: fresh tensors, to be filled, and what makes them the optimizer's.
struct StateTargets {
  StateTensors tensors;          // placed as the optimizer keeps them, or on their parameter's mesh
  std::function<void()> commit;  // collective, as state_dict(). Until then the optimizer is as it was
};

namespace detail {

// The count of steps that a state has under this name. Throws where it has none, or one that cannot be.
DTENSOR_API std::int64_t step_count(const std::string& name, std::optional<double> saved);

}  // namespace detail

// Every rank makes the same optimizer over the same list of parameters, those on meshes that it is not in included,
// and calls the same methods in the same order.
class DTENSOR_API Optimizer {
 public:
  virtual ~Optimizer() = default;

  // One update of every parameter that has a gradient; the others stay, with their state, as they are. An error if one
  // of those was replaced in its model since (fully_shard and parallelize replace plain tensors: make the optimizer
  // after them); a warning, once, if no parameter has a gradient.
  virtual void step() = 0;
  virtual std::vector<at::Tensor> parameters() const = 0;  // in the order of the groups

  // Groups of parameters with options of their own, and their learning rates.
  virtual std::size_t group_count() const = 0;
  virtual double lr(std::size_t group = 0) const = 0;
  virtual void set_lr(std::size_t group, double lr) = 0;
  void set_lr(double lr);  // of all groups

  // This parameter's state by name; empty before its first step. The tensors are the optimizer's own where it keeps
  // them whole; what one rank keeps for all is gathered (collective over the parameter's mesh).
  virtual StateTensors state(const at::Tensor& parameter) const = 0;
  // Collective, as state().
  virtual OptimizerState state_dict() const = 0;
  // For a state of the same parameters with these scalars and, as `saved` tells, these tensors. Errors name what is not
  // among the parameters.
  using Saved = std::function<bool(const std::string& name)>;
  virtual StateTargets state_targets(const StateScalars& scalars, const Saved& saved) = 0;
  // Throws what step() would throw of options, gradients and state, as far as that shows beforehand. Changes nothing,
  // and communicates nothing.
  virtual void check_step() const {}
  // Takes a state of the same parameters, on any layout: DTensors on the parameter's mesh with any placements, or
  // whole plain tensors. Errors name what is missing, has another shape or is not kept by this optimizer.
  void load_state_dict(const OptimizerState& state);

  // Forgets the gradients, or fills them with zeros.
  void zero_grad(bool set_to_none = true);
};

// One optimizer of several (Muon for matrices, AdamW for the rest). A parameter belongs to one of them. What a part
// refuses in check_step() is an error before any part has stepped.
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
  OptimizerState state_dict() const override;  // names prefixed `0.`, `1.`, ...: the part
  StateTargets state_targets(const StateScalars& scalars, const Saved& saved) override;

  // One of those that it was made of.
  Optimizer& part(std::size_t index) { return *parts_.at(index); }

 private:
  std::pair<Optimizer*, std::size_t> owner_of_group(std::size_t group) const;

  std::vector<std::unique_ptr<Optimizer>> parts_;
};

// Parameters with common options. Options out of their range (negative, NaN, a decay of 1) are an error where an
// optimizer is made with them, and at the step that they changed before, but for rates, which schedules may round below
// zero.
template <class Options>
struct ParameterGroup {
  std::vector<at::Tensor> parameters;  // leaves of floating point, without Partial
  // Of all of them.
  Options options = {};
  std::vector<std::string> names = {};  // for saved state, each once; by default the index over all groups
};

// One parameter as an optimizer keeps it.
struct OptimizerEntry {
  // For saved state, the parameter, its group, and how many steps it took.
  std::string name;
  at::Tensor parameter;
  std::size_t group = 0;
  std::int64_t steps = 0;
  std::vector<at::Tensor> slots;      // one per slot name; undefined before the first step
  at::ScalarType dtype = at::kFloat;  // of the slots
};

// The bookkeeping behind the optimizers of this library: an entry a parameter, with a step count and named slots (state
// of the parameter's shape and placements), made at its first step.
class DTENSOR_API SlotOptimizer : public Optimizer {
 public:
  void step() final;  // without recording gradients
  void check_step() const final;
  std::vector<at::Tensor> parameters() const override;
  StateTensors state(const at::Tensor& parameter) const override;
  OptimizerState state_dict() const override;
  StateTargets state_targets(const StateScalars& scalars, const Saved& saved) override;

 protected:
  // One parameter.
  using Entry = OptimizerEntry;
  // `wide`: state of half-precision parameters in single precision.
  explicit SlotOptimizer(std::vector<std::string> slot_names, bool wide = false)
      : slot_names_(std::move(slot_names)), wide_(wide) {}
  void add_parameters(std::size_t group, const std::vector<at::Tensor>& parameters,
                      const std::vector<std::string>& names);

  // `active`: the entries with a gradient, in order, their step counts already advanced.
  virtual void update(const std::vector<Entry*>& active) = 0;
  // Options may have changed since the optimizer was made: throws where a step cannot take them.
  virtual void check_options() const {}
  // State besides the slots, for one entry, under names that begin with `prefix`.
  virtual void save_extra_state(const Entry& /*entry*/, const std::string& /*prefix*/,
                                OptimizerState& /*state*/) const {}
  // Targets for it; commits take them. `steps`: the entry's in the saved state.
  virtual void extra_state_targets(Entry& /*entry*/, std::int64_t /*steps*/, const std::string& /*prefix*/,
                                   StateTensors& /*tensors*/, std::vector<std::function<void()>>& /*commits*/) {}
  // Whether each parameter that has taken a step has this slot, so that a saved state without it is an error.
  virtual bool is_slot_required(const Entry& /*entry*/, std::size_t /*slot*/) const { return true; }

  // In the order of the groups.
  const std::vector<Entry>& entries() const { return entries_; }
  std::vector<Entry>& entries() { return entries_; }

 private:
  StateTensors slots_of(const Entry& entry, const std::string& prefix) const;
  std::vector<at::Tensor> slot_targets(const Entry& entry, std::int64_t steps, const Saved& saved,
                                       StateTensors& tensors) const;
  // Of a parameter without state none.
  std::int64_t saved_steps(const Entry& entry, std::optional<double> count, const Saved& saved) const;
  void check_known(const StateScalars& scalars) const;

  std::vector<std::string> slot_names_;
  void warn_without_gradients();

  bool wide_, warned_ = false;
  std::vector<Entry> entries_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> index_;
};

// What an optimizer says of the options of a group.
template <class Options>
struct OptionValidator {
  const char* optimizer = nullptr;          // its name, for errors
  void (*check)(const Options&) = nullptr;  // throws where they are out of their range, but for the rate
};

// A SlotOptimizer whose groups have options with a learning rate `lr`.
template <class Options>
class GroupOptimizer : public SlotOptimizer {
 public:
  // Of this optimizer.
  using Group = ParameterGroup<Options>;

  // As those of Optimizer.
  std::size_t group_count() const override { return options_.size(); }
  double lr(std::size_t group = 0) const override { return options_.at(group).lr; }
  using Optimizer::set_lr;
  void set_lr(std::size_t group, double lr) override { options_.at(group).lr = lr; }
  // Takes effect with the next step. What shapes state (block size) must stay.
  Options& options(std::size_t group = 0) { return options_.at(group); }
  const Options& options(std::size_t group = 0) const { return options_.at(group); }

 protected:
  // With rules the groups' options are checked here, rates included, and at each step. Without, by nobody.
  GroupOptimizer(const std::vector<Group>& groups, std::vector<std::string> slot_names, bool wide = false,
                 OptionValidator<Options> rules = {})
      : SlotOptimizer(std::move(slot_names), wide), rules_(rules) {
    for (const Group& group : groups) {
      add_parameters(options_.size(), group.parameters, group.names);
      options_.push_back(group.options);
    }
    if (rules_.check == nullptr) return;
    for (const Options& options : options_) {
      TORCH_CHECK_VALUE(options.lr >= 0, rules_.optimizer, ": lr must not be negative, and is ", options.lr);
    }
    GroupOptimizer::check_options();
  }
  void check_options() const override {
    if (rules_.check == nullptr) return;
    for (const Options& options : options_) rules_.check(options);
  }

 private:
  OptionValidator<Options> rules_;
  std::vector<Options> options_;
};

// The learning rate of each step as an object: a function of the step alone, so that a run may be left and taken up at
// any step, on any number of ranks.
//
//   const LearningRate rate = LearningRate::cosine(3e-4, 900).after_warmup(100);  // 1000 steps
//   optimizer.set_lr(rate(step));

// The learning rate of a step, to be given to Optimizer::set_lr.
class DTENSOR_API LearningRate {
 public:
  using Function = std::function<double(std::int64_t step)>;  // steps count from 0
  explicit LearningRate(Function rate);                       // one of the user's own

  // The same at every step.
  static LearningRate constant(double lr);
  // From lr at step 0 to `last` at step `steps` and from there on: along a line, or half a period of a cosine
  // (Loshchilov and Hutter, arXiv:1608.03983).
  static LearningRate linear(double lr, std::int64_t steps, double last = 0);
  static LearningRate cosine(double lr, std::int64_t steps, double last = 0);
  // Warm-up, stable, decay (Hu et al., arXiv:2404.06395): lr up to `decay` steps before the end, then along a line.
  static LearningRate wsd(double lr, std::int64_t steps, std::int64_t decay, double last = 0);

  // Rises along a line over the first `steps` steps, from 1 / (steps + 1) of this rate's first value; then this rate
  // from its beginning.
  LearningRate after_warmup(std::int64_t steps) const;

  double operator()(std::int64_t step) const;

 private:
  Function rate_;
};

}  // namespace dtensor
