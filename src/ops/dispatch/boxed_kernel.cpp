// The boxed kernel serves all calls that no unboxed kernel serves: cache misses, operators without an unboxed kernel,
// and hits that redistribute. It builds the key, finds the CachedCall or compiles one, and runs it (execute_call).
#include "ops/dispatch/boxed_kernel.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "comm/event_listeners.h"
#include "internal/bit_identical.h"
#include "internal/simulated.h"
#include "ops/cache/decision_cache.h"
#include "ops/checks/call_fingerprint.h"
#include "ops/checks/inspect_state.h"
#include "ops/checks/regular_operand.h"
#include "ops/checks/result_check.h"
#include "ops/dispatch/for_each_tensor.h"
#include "ops/execute/execute_call.h"
#include "ops/execute/gradient_target.h"
#include "ops/execute/selective_checkpoint.h"
#include "ops/plan/compile_call.h"
#include "ops/plan/list_dependencies.h"
#include "scope/visible_operator.h"
#include "tensor/impl/call_error.h"

namespace dtensor {
namespace {

c10::ArrayRef<c10::IValue> arguments(const OpEntry& entry, const torch::jit::Stack& stack) {
  return c10::ArrayRef<c10::IValue>(stack.data() + (stack.size() - entry.args.size()), entry.args.size());
}

// Sets `fresh` if the cache did not hold the call.
CachedCallPtr find_or_compile(const OpEntry& entry, const torch::jit::Stack& stack, const CallOperands& operands,
                              bool& fresh) {
  auto call = find_call(entry.index, operands.key);
  fresh = call == nullptr;
  if (fresh) {
    const auto book = book_version.load(std::memory_order_acquire);
    call = insert_call(entry.index, compile_call(entry, arguments(entry, stack), operands), book);
  } else if (C10_UNLIKELY(recording_explanations())) {
    record_explanation(describe_call(entry, arguments(entry, stack), operands));
  }
  report_replicated(entry, *call, fresh);
  return call;
}

// Owning references to the tensors of a call, with lists flattened.
using KeptAliveTensors = c10::SmallVector<at::Tensor, 4>;

KeptAliveTensors tensors_of(c10::ArrayRef<c10::IValue> args) {
  KeptAliveTensors tensors;
  for (const auto& arg : args) {
    for_each_tensor(arg, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  }
  return tensors;
}

std::vector<const TensorSpec*> specs_of(const CachedCall& call) {
  std::vector<const TensorSpec*> specs;
  for (const auto& input : call.inputs) specs.push_back(input.from.get());
  return specs;
}

void run_with_event(const OpEntry& entry, const CachedCall& call, const CallOperands& operands,
                    torch::jit::Stack& stack) {
  Event event;
  event.kind = Event::Kind::op;
  event.name = c10::toString(entry.name());
  event.bytes = call.implicit_bytes;
  event.operands = describe_operands(specs_of(call));
  event.begin = std::chrono::steady_clock::now();
  execute_call(entry, call, operands, stack);
  const auto results = tensors_of(torch::jit::last(stack, entry.returns.size()));
  if (!entry.rule().data().uninitialized_results) event.tensors = results;
  emit_event(std::move(event));
}

void run_call(const OpEntry& entry, const CachedCall& call, const CallOperands& operands, torch::jit::Stack& stack) {
  C10_UNLIKELY(is_listening(Event::Kind::op)) ? run_with_event(entry, call, operands, stack)
                                              : execute_call(entry, call, operands, stack);
  if (C10_UNLIKELY(is_caching_results())) cache_result(entry, stack);
}

void run_checked(const OpEntry& entry, const CachedCall& call, const CallOperands& operands, torch::jit::Stack& stack) {
  record_call_fingerprint(entry, arguments(entry, stack), operands, call);
  if (checked_values()) {
    const ResultCheck check(entry, call, operands, stack);
    run_call(entry, call, operands, stack);
    check.compare(stack);
  } else {
    run_call(entry, call, operands, stack);
  }
  count_call_results(entry, stack);
}

// The tensors that an operator without results writes. ATen's autograd kernels do not advance their versions.
KeptAliveTensors written_unreturned(const OpEntry& entry, const torch::jit::Stack& stack) {
  KeptAliveTensors tensors;
  if (!entry.mutates || !entry.returns.empty()) return tensors;
  const auto args = arguments(entry, stack);
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (!entry.args[i].mutated) continue;
    for_each_tensor(args[i], [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  }
  return tensors;
}

void note_special_numbers(const OpEntry& entry, c10::ArrayRef<c10::IValue> args) {
  CallKey key;
  const MeshInfo* mesh = nullptr;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (entry.args[i].kind == ArgKind::scalar) key.scalar(args[i], false);
    if (mesh != nullptr) continue;
    for_each_tensor(args[i], [&](const at::Tensor& tensor) {
      if (auto* impl = dtensor_or_null(tensor); impl != nullptr) mesh = impl->spec()->mesh.get();
    });
  }
  if (mesh != nullptr) note_numbers(entry, *mesh, key.numbers);
}

// `given` is copied first because the kernel may pop the arguments from the stack before it throws.
void run_special(const OpEntry& entry, torch::jit::Stack& stack) {
  if (C10_UNLIKELY(checked_calls())) record_special_call_fingerprint(entry, arguments(entry, stack));
  note_special_numbers(entry, arguments(entry, stack));
  const CallerScope caller(entry.text());
  const auto given = tensors_of(arguments(entry, stack));
  const auto written = written_unreturned(entry, stack);
  try {
    entry.special(entry, stack);
    for (const at::Tensor& tensor : written) advance_version(*tensor.unsafeGetTensorImpl());
  } catch (...) {
    rethrow_with_call(entry.text(), given);
  }
}

void set_storage_error_message(const at::Tensor& result) {
  if (auto* impl = dtensor_or_null(result); impl != nullptr && !impl->has_storage()) set_storage_error_message(*impl);
}

void begin_call(const OpEntry& entry, const CallOperands& operands) {
  try {
    enter_call(entry, *operands.mesh);
    note_numbers(entry, *operands.mesh, operands.key.numbers);
  } catch (...) {
    rethrow_with_call(entry.text(), operands.tensors);
  }
}

// Adds the default dtype to the key if it decides the dtype of a floating-point result of integer operands.
void note_default_type(CallOperands& operands) {
  const auto type = c10::get_default_dtype_as_scalartype();
  if (C10_UNLIKELY(type != c10::ScalarType::Float) && operands.has_no_floating_operand()) {
    operands.key.integer(static_cast<std::int64_t>(type));
  }
}

// Adds the block size of a BitIdentical scope to the key, since the decision depends on it.
void note_block(CallOperands& operands) {
  const auto block = bit_identical_block();
  if (C10_UNLIKELY(block != 0)) operands.key.integer(-block);
}

// Sets `fresh` if the cache did not hold the call.
void find_and_run(const OpEntry& entry, torch::jit::Stack& stack, const CallOperands& operands, bool& fresh) {
  const CallerScope caller(entry.text());
  CachedCallPtr call;
  try {
    if (C10_UNLIKELY(operands.has_regular)) check_regular_operands(entry, arguments(entry, stack), operands);
    call = find_or_compile(entry, stack, operands, fresh);
    if (C10_UNLIKELY(positions_depend_on_each_other(entry, *call, operands, arguments(entry, stack)))) {
      fresh = false;  // each position is a call of its own
      return run_positions_sequentially(entry, stack);
    }
    if (C10_UNLIKELY(call->implicit_bytes != 0)) report_implicit_redistributions(entry, *call);
    checked_calls() ? run_checked(entry, *call, operands, stack) : run_call(entry, *call, operands, stack);
  } catch (...) {
    if (call != nullptr) rethrow_with_cached_call(entry, *call);
    rethrow_with_call(entry.text(), operands.tensors);
  }
}

}  // namespace

void rethrow_with_cached_call(const OpEntry& entry, const CachedCall& call) {
  rethrow_with_call(entry.text(), specs_of(call));
}

void throw_wrong_thread(const OpEntry& entry, const MeshInfo& mesh) {
  throw_wrong_rank(as_mesh_impl(mesh).record(), c10::str(entry.text(), ": a DTensor on ", as_mesh_impl(mesh).str()));
}

bool any_scope_needs_boxed_kernel() {
  return is_listening(Event::Kind::op) || recording_explanations() || is_caching_results() || checked_calls() ||
         is_simulating() || is_bit_identical();
}

void run_operator(const OpEntry& entry, torch::jit::Stack& stack) {
  const KernelGuard guard;
  if (C10_UNLIKELY(entry.special != nullptr)) return run_special(entry, stack);
  run_cached_or_compile(entry, stack);
}

void run_cached_or_compile(const OpEntry& entry, torch::jit::Stack& stack) {
  CallOperands operands(entry, arguments(entry, stack));
  if (C10_UNLIKELY(entry.rule().data().follows_parameter_placement)) {
    for (const auto& leaf : gradient_leaf_specs()) operands.key.spec(leaf.get());
  }
  if (C10_UNLIKELY(operands.mesh == nullptr)) return entry.op.callBoxed(stack);  // an argument list without DTensors
  note_default_type(operands);
  note_block(operands);
  begin_call(entry, operands);
  if (C10_UNLIKELY(any_operator_scope())) {
    if (run_visible_call(entry.op, stack) || (is_caching_results() && replay_cached_result(entry, stack))) return;
  }
  bool fresh = false;
  find_and_run(entry, stack, operands, fresh);
  if (C10_LIKELY(!fresh)) return;
  for (auto r = stack.size() - entry.returns.size(); r < stack.size(); ++r) {
    for_each_tensor(stack[r], [](const at::Tensor& result) { set_storage_error_message(result); });
  }
}

}  // namespace dtensor
