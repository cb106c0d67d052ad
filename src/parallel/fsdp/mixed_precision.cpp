// Mixed precision: casts in the place of parameters while a forward pass runs. A cast keeps its shards, so what is
// gathered is the narrow dtype, and autograd brings the gradient back to the parameter's own.
#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "dtensor/fully_shard.h"
#include "internal/autograd_node.h"
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
  std::shared_ptr<const State> outer;
};

namespace {
// Casts are made before anything else of a forward pass, so autograd would come to them last, with the gradients of all
// units waiting. Like a leaf's accumulation, theirs is to run as soon as it can.
at::Tensor cast_of(const at::Tensor& parameter, at::ScalarType dtype) {
  auto cast = parameter.to(dtype);
  if (cast.grad_fn()) cast.grad_fn()->set_sequence_nr(UINT64_MAX);
  return cast;
}
}  // namespace

ComputeScope::ComputeScope(const NamedTensors& parameters) {
  std::map<const c10::TensorImpl*, at::Tensor> casts;  // tied ones stay tied
  auto state = std::make_shared<State>();
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
  scope_ = std::make_shared<const ScopedValue<StatePtr>>(std::move(state), Recompute::restored, false, reopen);
}

std::shared_ptr<const void> ComputeScope::reopen(const std::shared_ptr<const void>& state) {
  const std::shared_ptr<ComputeScope> scope(new ComputeScope());
  scope->open(state == nullptr ? nullptr : *static_cast<const StatePtr*>(state.get()));
  return scope;
}

// A slot that has the cast, or something else, by now stays as it is.
void ComputeScope::enter(const State& state) {
  for (const auto& [slot, parameter, cast] : state.casts) {
    if (!slot->is_same(parameter)) continue;
    kept_.emplace_back(slot, parameter);
    *slot = cast;
  }
}

ComputeScope::~ComputeScope() {
  for (auto& [slot, parameter] : kept_) *slot = std::move(parameter);
}

at::Tensor ComputeScope::output(const at::Tensor& result) const {
  return output_dtype_ ? result.to(*output_dtype_) : result;
}

}  // namespace dtensor
