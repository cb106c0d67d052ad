// The boxed kernel: the hit path is key, look-up, local call, wrap.
#include "ops/kernel.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "comm/events.h"
#include "ops/cache.h"
#include "ops/call_note.h"
#include "ops/execute.h"
#include "ops/inspect_state.h"
#include "ops/kept_results.h"
#include "ops/plain_operand.h"
#include "ops/prepare.h"
#include "ops/result_check.h"

namespace dtensor {
namespace {

c10::ArrayRef<c10::IValue> arguments(const OpEntry& entry, const torch::jit::Stack& stack) {
  return c10::ArrayRef<c10::IValue>(stack.data() + (stack.size() - entry.args.size()), entry.args.size());
}

constexpr int kMostCasts = 3;

// Nodes that give the gradient on in the same sizes.
bool passes_on(const torch::autograd::Node& node) {
  const auto name = node.name();
  return node.num_outputs() == 1 && (name == "ToCopyBackward0" || name == "AliasBackward0");
}

// Where the gradient goes that the running autograd node computes: the spec of the leaf behind the node's first edge,
// perhaps through casts; null where there is none, or none that is known. Lets an operator that would build the
// gradient of a whole table build only the rows that the parameter's shard wants.
SpecPtr destination_of_gradient() {
  const auto running = torch::autograd::get_current_node();
  if (!running || running->num_outputs() == 0) return {};
  auto* node = running->next_edge(0).function.get();
  for (int i = 0; i < kMostCasts && node != nullptr && passes_on(*node); ++i) node = node->next_edge(0).function.get();
  auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node);
  auto* impl = leaf == nullptr ? nullptr : dtensor_or_null(leaf->variable);
  return impl == nullptr ? SpecPtr() : impl->spec();
}

CachedCallPtr decide(const OpEntry& entry, const torch::jit::Stack& stack, const CallView& view) {
  auto call = cache_find(entry.index, view.key);
  if (!call) return cache_insert(entry.index, prepare_call(entry, arguments(entry, stack), view));
  if (C10_UNLIKELY(recording_explanations())) {
    record_explanation(describe_call(entry, arguments(entry, stack), view));
  }
  return call;
}

void run_with_event(const OpEntry& entry, const CachedCall& call, const CallView& view, torch::jit::Stack& stack) {
  Event event;
  event.kind = Event::Kind::op;
  event.name = c10::toString(entry.name());
  event.bytes = call.implicit_bytes;
  event.begin = std::chrono::steady_clock::now();
  execute_call(entry, call, view, stack);
  event.end = std::chrono::steady_clock::now();
  emit_event(event);
}

void run_call(const OpEntry& entry, const CachedCall& call, const CallView& view, torch::jit::Stack& stack) {
  C10_UNLIKELY(events_on(Event::Kind::op)) ? run_with_event(entry, call, view, stack)
                                           : execute_call(entry, call, view, stack);
  if (C10_UNLIKELY(keeping_results())) keep_result(entry, stack);
}

void run_checked(const OpEntry& entry, const CachedCall& call, const CallView& view, torch::jit::Stack& stack) {
  note_checked_call(entry, arguments(entry, stack), view, call);
  if (checked_values()) {
    const ResultCheck check(entry, call, view, stack);
    run_call(entry, call, view, stack);
    check.compare(stack);
  } else {
    run_call(entry, call, view, stack);
  }
  count_results(entry, stack);
}

void run_special(const OpEntry& entry, torch::jit::Stack& stack) {
  if (C10_UNLIKELY(checked_calls())) note_special_call(entry, arguments(entry, stack));
  entry.special(entry, stack);
}

}  // namespace

void refuse_call(const OpEntry& entry, const MeshInfo& mesh) {
  refuse_other_rank(acting(mesh).record(), c10::str(entry.text(), ": a DTensor on ", acting(mesh).str()));
}

bool operators_watched() {
  return events_on(Event::Kind::op) || recording_explanations() || keeping_results() || checked_calls();
}

void run_operator(const OpEntry& entry, torch::jit::Stack& stack) {
  c10::impl::ExcludeDispatchKeyGuard guard(engine_excluded_keys());
  if (C10_UNLIKELY(entry.special != nullptr)) return run_special(entry, stack);
  run_by_rule(entry, stack);
}

void run_by_rule(const OpEntry& entry, torch::jit::Stack& stack) {
  CallView view(entry, arguments(entry, stack));
  if (C10_UNLIKELY(entry.rule().data().asks_destination) && (view.destination = destination_of_gradient())) {
    view.key.spec(view.destination.get());
  }
  if (C10_UNLIKELY(view.mesh == nullptr)) return entry.op.callBoxed(stack);  // a list without DTensors
  enter_call(entry, *view.mesh);
  if (C10_UNLIKELY(keeping_results()) && take_kept_result(entry, stack)) return;
  if (C10_UNLIKELY(view.has_plain)) check_plain_operands(entry, arguments(entry, stack), view);
  const auto call = decide(entry, stack, view);
  if (C10_UNLIKELY(call->implicit_bytes != 0)) report_moves(entry, *call);
  if (C10_UNLIKELY(checked_calls())) return run_checked(entry, *call, view, stack);
  run_call(entry, *call, view, stack);
}

}  // namespace dtensor
