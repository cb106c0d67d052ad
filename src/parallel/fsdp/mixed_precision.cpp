// Mixed precision: casts replace parameters while a forward pass runs. A cast stays sharded, so the narrow dtype is
// gathered, and autograd casts the gradient back to the parameter's dtype.
#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "dtensor/fully_shard.h"
#include "internal/autograd_node.h"
#include "internal/ranks/named_calls.h"
#include "name_patterns/name_patterns.h"
#include "parallel/fsdp/unit.h"

namespace dtensor {
namespace fsdp {

std::optional<at::ScalarType> param_dtype_of(const MixedPrecision& precision, const std::string& name,
                                             at::ScalarType own) {
  if (!at::isFloatingType(own)) return {};
  for (const auto& [pattern, dtype] : precision.param_dtype_of) {
    if (matches_pattern(pattern, name, /*across_dots=*/true)) return dtype;
  }
  return precision.param_dtype;
}

}  // namespace fsdp

struct ComputeScope::State {
  struct Cast {
    at::Tensor* slot;
    at::Tensor parameter, cast;
  };
  std::vector<Cast> casts;
  std::shared_ptr<const void> owner;  // of the slots
  std::shared_ptr<const State> outer;
};

namespace {
// Casts are created before everything else in a forward pass, so autograd would run their backward last, with the
// gradients of all units pending. A maximal sequence number makes it run as early as possible, like the accumulation of
// a leaf.
at::Tensor cast_of(const at::Tensor& parameter, at::ScalarType dtype) {
  // The cast of a shard is a part of the unit's gather (StepTrace::Event::of_unit). Nothing is communicated.
  static const auto name = NamedCallScope::name("the casts of a unit");
  const NamedCallScope named(name);
  auto cast = parameter.to(dtype);
  if (cast.grad_fn()) cast.grad_fn()->set_sequence_nr(UINT64_MAX);
  return cast;
}
}  // namespace

ComputeScope::ComputeScope(const NamedTensors& parameters, std::shared_ptr<const void> owner) {
  std::map<const c10::TensorImpl*, at::Tensor> casts;  // by parameter, so tied parameters stay tied
  auto state = std::make_shared<State>();
  state->owner = std::move(owner);
  const auto* outer = ScopedValue<StatePtr>::current();
  state->outer = outer == nullptr ? nullptr : *outer;
  for (const auto& [name, slot] : parameters) {
    std::size_t k = 0;
    const auto* unit = fsdp::unit_of(*slot, k);
    if (unit == nullptr) continue;
    if (unit->options.precision.output_dtype) output_dtype_ = unit->options.precision.output_dtype;
    const auto dtype = unit->parameters[k].param_dtype;
    if (!dtype || *dtype == slot->scalar_type()) continue;
    auto& cast = casts[slot->unsafeGetTensorImpl()];
    if (!cast.defined()) cast = cast_of(*slot, *dtype);
    state->casts.push_back({slot, *slot, cast});
  }
  open(std::move(state));
}

void ComputeScope::open(StatePtr state) {
  std::vector<const State*> chain;  // innermost first
  for (const auto* s = state.get(); s != nullptr; s = s->outer.get()) chain.push_back(s);
  std::for_each(chain.rbegin(), chain.rend(), [&](const State* s) { enter(*s); });
  scope_ =
      std::make_shared<const ScopedValue<StatePtr>>(std::move(state), Recompute::restored, OperatorScope::no, reopen);
}

std::shared_ptr<const void> ComputeScope::reopen(const std::shared_ptr<const void>& state) {
  const std::shared_ptr<ComputeScope> scope(new ComputeScope());
  const auto* now = ScopedValue<StatePtr>::current();
  for (const auto* s = now == nullptr ? nullptr : now->get(); s != nullptr; s = s->outer.get()) {
    for (const auto& [slot, parameter, cast] : s->casts) {
      if (!slot->is_same(cast)) continue;
      scope->kept_.emplace_back(slot, cast);
      *slot = parameter;
    }
  }
  scope->open(state == nullptr ? nullptr : *static_cast<const StatePtr*>(state.get()));
  return scope;
}

// A slot that no longer holds the parameter is not changed.
void ComputeScope::enter(const State& state) {
  for (const auto& [slot, parameter, cast] : state.casts) {
    if (!slot->is_same(parameter)) continue;
    kept_.emplace_back(slot, parameter);
    *slot = cast;
  }
}

ComputeScope::~ComputeScope() {
  for (auto kept = kept_.rbegin(); kept != kept_.rend(); ++kept) *kept->first = std::move(kept->second);
}

bool ComputeScope::current() {
  const auto* state = ScopedValue<StatePtr>::current();
  return state != nullptr && *state != nullptr;
}

at::Tensor ComputeScope::output(const at::Tensor& result) const {
  return output_dtype_ ? result.to(*output_dtype_) : result;
}

}  // namespace dtensor
