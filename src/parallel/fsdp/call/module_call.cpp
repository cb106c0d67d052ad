// The hook of a module's calls: decides their semantics. With local semantics it selects which parameters of the module
// are replaced, and swaps them in and out; with global semantics it casts them.
#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "internal/fsdp_call.h"
#include "internal/scoped_value.h"
#include "parallel/fsdp/call/local_module_call.h"

namespace dtensor {

FsdpCall::FsdpCall(at::TensorList parameters, at::TensorList inputs, OnBackward on_backward)
    : call_(std::make_shared<fsdp::LocalModuleCall>(parameters, inputs, std::move(on_backward))) {
  call_->enter_forward();
}

FsdpCall::~FsdpCall() { finish({}); }

const std::vector<at::Tensor>& FsdpCall::tensors() const { return call_->tensors; }

void FsdpCall::watch(at::TensorList outputs) { call_->watch(outputs); }

void FsdpCall::finish(at::TensorList outputs, bool keep) {
  if (!std::exchange(finished_, true)) call_->leave_forward(outputs, keep);
}

namespace fsdp {
namespace {

using Slots = std::vector<at::Tensor*>;

// Slots of parameters of units, except units of submodules, whose own calls handle them. Slots that an enclosing call
// has replaced are not listed.
Slots own_slots(const NamedTensors& parameters) {
  Slots all;
  std::vector<std::shared_ptr<FsdpUnit::Impl>> parts;
  for (const auto& item : parameters) {
    const auto unit = find_unit_parameter(*item.second).unit;
    if (unit == nullptr) continue;
    all.push_back(item.second);
    if (unit->slots.size() < parameters.size()) parts.push_back(unit);
  }
  std::erase_if(all, [&](const at::Tensor* slot) {
    return std::any_of(parts.begin(), parts.end(), [&](const auto& unit) {
      return std::find(unit->slots.begin(), unit->slots.end(), slot) != unit->slots.end();
    });
  });
  return all;
}

// A DTensor on the further axes only (tensor parallelism) is local data of one data-parallel rank.
bool is_global(const at::Tensor& input, const Slots& slots) {
  if (!is_dtensor(input)) return false;
  const auto mesh = DTensor(input).mesh();
  return std::none_of(slots.begin(), slots.end(), [&](const at::Tensor* slot) {
    const auto member = find_unit_parameter(*slot);
    return member.unit != nullptr && member.parameter().tp_axes.mesh == mesh;
  });
}

// Puts unsharded tensors into the slots of parameters while a call of the module is in forward or backward.
class ParameterSlots {
 public:
  explicit ParameterSlots(Slots slots) : slots_(std::move(slots)) {
    for (const auto* slot : slots_) owners_.push_back(*slot);
  }
  const std::vector<at::Tensor>& owners() const { return owners_; }
  void put(const std::vector<at::Tensor>& tensors) const {
    for (std::size_t i = 0; i < slots_.size(); ++i) *slots_[i] = tensors[i];
  }
  void restore() const { put(owners_); }

 private:
  Slots slots_;
  std::vector<at::Tensor> owners_;
};

// Of the active calls on this thread; the outermost decides.
struct CallSemantics {
  bool on_local_data;
  bool with_gradients;  // whether grad mode was enabled when it began
};

// The semantics of one call around forward().
class ModuleCall {
 public:
  ModuleCall(const NamedTensors& parameters, at::TensorList inputs);
  void leave(at::TensorList outputs);  // after forward(), with its results
  // Whether no other call is around this one, and whether this call has global semantics.
  bool is_outermost() const { return outermost_; }
  bool has_global_semantics() const;

 private:
  struct State;
  std::unique_ptr<State> state_;  // null: global semantics
  std::shared_ptr<const void> scope_;
  bool outermost_ = false;
};

struct ModuleCall::State {
  State(Slots slots, at::TensorList inputs) : parameter_slots(std::make_shared<ParameterSlots>(std::move(slots))) {
    auto unsharded = std::make_shared<std::vector<at::Tensor>>();
    call.emplace(parameter_slots->owners(), inputs, [parameter_slots = parameter_slots, unsharded](bool inside) {
      inside ? parameter_slots->put(*unsharded) : parameter_slots->restore();
    });
    *unsharded = call->tensors();
    parameter_slots->put(*unsharded);
  }
  ~State() { finish({}, false); }
  void finish(at::TensorList outputs, bool keep) {
    if (!call) return;
    parameter_slots->restore();
    call->finish(outputs, keep);
    call.reset();
  }

  std::shared_ptr<ParameterSlots> parameter_slots;
  std::optional<FsdpCall> call;
};

ModuleCall::ModuleCall(const NamedTensors& parameters, at::TensorList inputs) {
  const auto* around = ScopedValue<CallSemantics>::current();
  auto slots = own_slots(parameters);
  const bool global = std::any_of(inputs.begin(), inputs.end(), [&](const auto& t) { return is_global(t, slots); });
  const bool on_local_data = around != nullptr ? around->on_local_data : !global;
  const bool with_gradients = around != nullptr ? around->with_gradients : at::GradMode::is_enabled();
  outermost_ = around == nullptr;
  scope_ = open_scope(CallSemantics{on_local_data, with_gradients}, Recompute::restored);
  if (on_local_data && !slots.empty()) state_ = std::make_unique<State>(std::move(slots), inputs);
}

void ModuleCall::leave(at::TensorList outputs) {
  if (state_ != nullptr) state_->finish(outputs, outermost_);
  scope_.reset();
}

bool ModuleCall::has_global_semantics() const {
  const auto* semantics = ScopedValue<CallSemantics>::current();
  return semantics != nullptr && !semantics->on_local_data;
}

// Parameters that a call of the module casts: all but those of submodules with units, whose calls cast them.
NamedTensors cast_by_call(const NamedTensors& parameters) {
  NamedTensors own;
  std::vector<std::shared_ptr<FsdpUnit::Impl>> parts;
  for (const auto& item : parameters) {
    const auto unit = find_unit_parameter(*item.second).unit;
    if (unit == nullptr) continue;
    own.push_back(item);
    if (unit->slots.size() < parameters.size() && unit->has_module) parts.push_back(unit);
  }
  std::erase_if(own, [&](const auto& item) {
    return std::any_of(parts.begin(), parts.end(), [&](const auto& unit) {
      return std::find(unit->slots.begin(), unit->slots.end(), item.second) != unit->slots.end();
    });
  });
  return own;
}

void cast(const std::vector<at::Tensor*>& tensors, std::optional<at::ScalarType> dtype) {
  if (!dtype) return;
  for (at::Tensor* tensor : tensors) {
    if (tensor->is_floating_point()) *tensor = tensor->to(*dtype);
  }
}

std::vector<at::Tensor> tensors_at(const std::vector<at::Tensor*>& slots) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor* slot : slots) tensors.push_back(*slot);
  return tensors;
}

// One call of a module that fully_shard() was given.
class HookedCall {
 public:
  HookedCall(const NamedTensors& parameters, const nn::TensorSlots& inputs, const MixedPrecision& precision)
      : precision_(precision), call_(parameters, tensors_at(inputs)) {
    casts_outputs_ = call_.is_outermost() && !ComputeScope::current();
    if (precision.param_dtype || !precision.param_dtype_of.empty()) {
      if (call_.has_global_semantics()) casts_.emplace(cast_by_call(parameters));
    }
    if (precision.cast_forward_inputs) cast(inputs, precision.param_dtype);
  }
  void leave(const nn::TensorSlots& outputs) {
    casts_.reset();
    call_.leave(tensors_at(outputs));
    if (casts_outputs_) cast(outputs, precision_.output_dtype);
  }

 private:
  const MixedPrecision& precision_;
  ModuleCall call_;
  std::optional<ComputeScope> casts_;
  bool casts_outputs_ = false;
};

}  // namespace

bool in_training_call() {
  const auto* semantics = ScopedValue<CallSemantics>::current();
  return semantics != nullptr && semantics->with_gradients;
}

}  // namespace fsdp

void detail::run_module_call(const NamedTensors& parameters, at::TensorList inputs,
                             const std::function<std::vector<at::Tensor>()>& forward) {
  fsdp::ModuleCall call(parameters, inputs);
  call.leave(forward());
}

FsdpUnit fully_shard(nn::Module& module, const DeviceMesh& mesh, const FsdpOptions& options) {
  const auto parameters = module.named_parameters();
  auto unit = fully_shard(parameters, mesh, options);
  for (const auto& item : parameters) {
    const auto own = fsdp::find_unit_parameter(*item.second).unit;
    if (own != nullptr && own->slots.size() == parameters.size()) own->has_module = true;
  }
  module.register_call_hook([&module, precision = options.precision](const nn::TensorSlots& inputs) {
    const auto call = std::make_shared<fsdp::HookedCall>(module.named_parameters(), inputs, precision);
    return [call](const nn::TensorSlots& outputs) { call->leave(outputs); };
  });
  return unit;
}

}  // namespace dtensor
