// Results in the order of their calls. Replay returns shallow copies, because the recorded tensor may be part of
// another autograd graph.
#include "ops/execute/selective_checkpoint.h"

#include <vector>

#include "scope/scope_frames.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

struct SelectiveCheckpointCache::State {
  struct Result {
    const OpEntry* entry;
    std::vector<c10::IValue> values;
    std::vector<std::uint64_t> generations;
  };
  std::set<std::string> operators;
  std::vector<Result> results;
  std::size_t next = 0;  // index of the next result to replay
};

namespace {

template <class Role>
SelectiveCheckpointCache::State* state_of() {
  const auto* role = ScopedValue<Role>::current();
  return role == nullptr ? nullptr : role->state.get();
}

SelectiveCheckpointCache::State* recording() { return state_of<SelectiveCheckpointCache::Recording>(); }
SelectiveCheckpointCache::State* replaying() { return state_of<SelectiveCheckpointCache::Replaying>(); }

std::uint64_t generation_of(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return 0;
  const auto* impl = dtensor_or_null(value.toTensor());
  return impl == nullptr ? 0 : impl->generation();
}

// A detached shallow copy. With a graph it would form a reference cycle, since the function's own graph owns the
// record.
c10::IValue copy_of(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return value;
  return at::Tensor(value.toTensor().unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), false));
}

bool chosen(const SelectiveCheckpointCache::State* state, const OpEntry& entry) {
  return state != nullptr && state->operators.count(entry.name().name) != 0;
}

void check_keepable(const OpEntry& entry) {
  const bool tensors = std::any_of(entry.returns.begin(), entry.returns.end(),
                                   [](const ReturnInfo& r) { return r.is_tensor && !r.is_list; });
  const bool random = entry.is_random && !entry.rule().data().not_random;
  TORCH_CHECK(tensors && entry.reads_only() && !random, entry.name(),
              ": its results cannot be kept: expected an operator that returns tensors, writes nothing, returns no "
              "view and is not random. Remove it from the names to keep.");
}

}  // namespace

SelectiveCheckpointCache::SelectiveCheckpointCache(std::set<std::string> operators) {
  if (operators.empty()) return;
  state_ = std::make_shared<State>();
  state_->operators = std::move(operators);
  // aten::linear decomposes into mm or addmm on one device, so these names include it.
  const bool products = state_->operators.count("aten::mm") + state_->operators.count("aten::addmm") != 0;
  if (products) state_->operators.insert("aten::linear");
}

// Clears the results of an earlier run, which may have thrown.
SelectiveCheckpointCache::Record::Record(const SelectiveCheckpointCache& results)
    : scope_({results.state_}, Recompute::unchanged, OperatorScope{results.state_ != nullptr}) {
  if (results.state_) results.state_->results.clear();
}

SelectiveCheckpointCache::Replay::Replay(const SelectiveCheckpointCache& results)
    : scope_({results.state_}, Recompute::unchanged, OperatorScope{results.state_ != nullptr}),
      no_record_({nullptr}, Recompute::unchanged) {
  if (results.state_) results.state_->next = 0;
}

void SelectiveCheckpointCache::check_all_replayed() const {
  if (!state_ || state_->next == state_->results.size()) return;
  TORCH_CHECK(false, state_->results[state_->next].entry->name(),
              ": expected the recomputation to make the same calls as the first run; the first run made ",
              state_->results.size(), " calls with kept results, the recomputation ", state_->next);
}

bool is_caching_results() { return any_operator_scope() && (recording() != nullptr || replaying() != nullptr); }

bool replay_cached_result(const OpEntry& entry, torch::jit::Stack& stack) {
  auto* state = replaying();
  if (!chosen(state, entry)) return false;
  const bool more = state->next < state->results.size();
  TORCH_CHECK(more && state->results[state->next].entry == &entry, entry.name(),
              ": expected the recomputation to make the same calls as the first run; the next recorded call is ",
              more ? c10::toString(state->results[state->next].entry->name()) : "none (fewer calls were recorded)");
  const auto& result = state->results[state->next++];
  stack.resize(stack.size() - entry.args.size());
  for (std::size_t i = 0; i < result.values.size(); ++i) {
    TORCH_CHECK(generation_of(result.values[i]) == result.generations[i], entry.name(),
                ": a kept result was modified in place before the recomputation");
    stack.emplace_back(copy_of(result.values[i]));
  }
  cache_result(entry, stack);  // an inner checkpoint may record
  return true;
}

void cache_result(const OpEntry& entry, const torch::jit::Stack& stack) {
  auto* state = recording();
  if (!chosen(state, entry)) return;
  check_keepable(entry);
  SelectiveCheckpointCache::State::Result result{&entry, {}, {}};
  const std::size_t count = entry.returns.size();
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i) {
    result.values.push_back(copy_of(stack[i]));
    result.generations.push_back(generation_of(stack[i]));
  }
  state->results.push_back(std::move(result));
}

}  // namespace dtensor
