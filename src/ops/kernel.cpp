// The boxed kernel: the hit path is key, look-up, local call, wrap.
#include "ops/kernel.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "comm/events.h"
#include "ops/cache.h"
#include "ops/call_note.h"
#include "ops/destination.h"
#include "ops/each_tensor.h"
#include "ops/execute.h"
#include "ops/inspect_state.h"
#include "ops/kept_results.h"
#include "ops/list_order.h"
#include "ops/plain_operand.h"
#include "ops/prepare.h"
#include "ops/result_check.h"
#include "scope/shown_call.h"
#include "tensor/impl/call_error.h"

namespace dtensor {
namespace {

c10::ArrayRef<c10::IValue> arguments(const OpEntry& entry, const torch::jit::Stack& stack) {
  return c10::ArrayRef<c10::IValue>(stack.data() + (stack.size() - entry.args.size()), entry.args.size());
}

// `fresh`: whether it was not known.
CachedCallPtr decide(const OpEntry& entry, const torch::jit::Stack& stack, const CallView& view, bool& fresh) {
  auto call = cache_find(entry.index, view.key);
  fresh = call == nullptr;
  if (fresh) {
    const auto book = book_version.load(std::memory_order_acquire);
    call = cache_insert(entry.index, prepare_call(entry, arguments(entry, stack), view), book);
  } else if (C10_UNLIKELY(recording_explanations())) {
    record_explanation(describe_call(entry, arguments(entry, stack), view));
  }
  report_replicated(entry, *call, fresh);
  return call;
}

// Those of a call, lists flattened, each held.
using HeldTensors = c10::SmallVector<at::Tensor, 4>;

HeldTensors tensors_of(c10::ArrayRef<c10::IValue> args) {
  HeldTensors tensors;
  for (const auto& arg : args) {
    for_each_tensor(arg, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  }
  return tensors;
}

std::vector<c10::TensorImpl*> impls_of(at::TensorList tensors) {
  std::vector<c10::TensorImpl*> impls;
  for (const auto& tensor : tensors) impls.push_back(tensor.unsafeGetTensorImpl());
  return impls;
}

std::vector<const TensorSpec*> specs_of(const CachedCall& call) {
  std::vector<const TensorSpec*> specs;
  for (const auto& input : call.inputs) specs.push_back(input.from.get());
  return specs;
}

void run_with_event(const OpEntry& entry, const CachedCall& call, const CallView& view, torch::jit::Stack& stack) {
  Event event;
  event.kind = Event::Kind::op;
  event.name = c10::toString(entry.name());
  event.bytes = call.implicit_bytes;
  event.operands = operands_text(specs_of(call));
  event.begin = std::chrono::steady_clock::now();
  execute_call(entry, call, view, stack);
  event.end = std::chrono::steady_clock::now();
  emit_event(std::move(event));
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

// What an operator without results writes: ATen's kernels above the engine do not advance its version.
HeldTensors written_unreturned(const OpEntry& entry, const torch::jit::Stack& stack) {
  HeldTensors tensors;
  if (!entry.mutates || !entry.returns.empty()) return tensors;
  const auto args = arguments(entry, stack);
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (!entry.args[i].mutated) continue;
    for_each_tensor(args[i], [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  }
  return tensors;
}

// The kernel may have taken the arguments from the stack by when it throws.
void run_special(const OpEntry& entry, torch::jit::Stack& stack) {
  if (C10_UNLIKELY(checked_calls())) note_special_call(entry, arguments(entry, stack));
  const Caller caller(entry.text());
  const auto given = tensors_of(arguments(entry, stack));
  const auto written = written_unreturned(entry, stack);
  try {
    entry.special(entry, stack);
    for (const at::Tensor& tensor : written) advance_version(*tensor.unsafeGetTensorImpl());
  } catch (...) {
    rethrow_from(entry.text(), impls_of(given));
  }
}

void run_decided(const OpEntry& entry, const CachedCall& call, const CallView& view, torch::jit::Stack& stack) {
  try {
    if (C10_UNLIKELY(call.implicit_bytes != 0)) report_moves(entry, call);
    checked_calls() ? run_checked(entry, call, view, stack) : run_call(entry, call, view, stack);
  } catch (...) {
    rethrow_from_call(entry, call);
  }
}

void say_where_memory_is(const at::Tensor& result) {
  if (auto* impl = dtensor_or_null(result); impl != nullptr && !impl->has_storage()) say_where_memory_is(*impl);
}

void begin_call(const OpEntry& entry, const CallView& view) {
  try {
    enter_call(entry, *view.mesh);
  } catch (...) {
    rethrow_from(entry.text(), view.operands);
  }
}

// Integers that become fractions do so in this type.
void note_default_type(CallView& view) {
  const auto type = c10::get_default_dtype_as_scalartype();
  if (C10_UNLIKELY(type != c10::ScalarType::Float) && view.lacks_fractions()) {
    view.key.integer(static_cast<std::int64_t>(type));
  }
}

CachedCallPtr decide_for(const OpEntry& entry, torch::jit::Stack& stack, const CallView& view, bool& fresh) {
  try {
    if (C10_UNLIKELY(view.has_plain)) check_plain_operands(entry, arguments(entry, stack), view);
    return decide(entry, stack, view, fresh);
  } catch (...) {
    rethrow_from(entry.text(), view.operands);
  }
}

}  // namespace

void rethrow_from_call(const OpEntry& entry, const CachedCall& call) { rethrow_from(entry.text(), specs_of(call)); }

void refuse_call(const OpEntry& entry, const MeshInfo& mesh) {
  refuse_other_rank(acting(mesh).record(), c10::str(entry.text(), ": a DTensor on ", acting(mesh).str()));
}

bool operators_watched() {
  return events_on(Event::Kind::op) || recording_explanations() || keeping_results() || checked_calls();
}

void run_operator(const OpEntry& entry, torch::jit::Stack& stack) {
  const EngineGuard guard;
  if (C10_UNLIKELY(entry.special != nullptr)) return run_special(entry, stack);
  run_by_rule(entry, stack);
}

void run_by_rule(const OpEntry& entry, torch::jit::Stack& stack) {
  CallView view(entry, arguments(entry, stack));
  if (C10_UNLIKELY(entry.rule().data().asks_destination)) {
    for (const auto& leaf : leaves_of_gradients()) view.key.spec(leaf.get());
  }
  if (C10_UNLIKELY(view.mesh == nullptr)) return entry.op.callBoxed(stack);  // a list without DTensors
  note_default_type(view);
  begin_call(entry, view);
  if (C10_UNLIKELY(scopes_watched())) {
    if (run_shown_call(entry.op, stack) || (keeping_results() && take_kept_result(entry, stack))) return;
  }
  const Caller caller(entry.text());
  bool fresh = false;
  const auto call = decide_for(entry, stack, view, fresh);
  if (C10_UNLIKELY(order_matters(entry, *call, view, arguments(entry, stack)))) return run_in_order(entry, stack);
  run_decided(entry, *call, view, stack);
  if (C10_LIKELY(!fresh)) return;
  for (auto r = stack.size() - entry.returns.size(); r < stack.size(); ++r) {
    for_each_tensor(stack[r], [](const at::Tensor& result) { say_where_memory_is(result); });
  }
}

}  // namespace dtensor
