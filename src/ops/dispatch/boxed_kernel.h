// The boxed kernel that ATen's dispatcher calls for operators without an unboxed one.
#pragma once

#include "comm/record/call_history.h"
#include "comm/record/rank_record.h"
#include "mesh/mesh_impl.h"
#include "ops/cache/cached_call.h"
#include "ops/dispatch/kernel_guard.h"
#include "ops/dispatch/operator_entry.h"

namespace dtensor {

// Runs one call by the operator's special kernel, or by run_cached_or_compile. The arguments are on top of `stack`.
void run_operator(const OpEntry& entry, torch::jit::Stack& stack);

// Runs a call without the operator's special kernel: by the CachedCall that the decision cache holds for its key, or by
// one compiled from the operator's sharding rule. The caller holds an KernelGuard.
void run_cached_or_compile(const OpEntry& entry, torch::jit::Stack& stack);

// Whether a current scope has to be served in every operator call (listeners, explanations, cached results, checks).
bool any_scope_needs_boxed_kernel();

// Rethrows the current exception with the operator and the specs of its operands (tensor/impl/call_error.h).
[[noreturn]] void rethrow_with_cached_call(const OpEntry& entry, const CachedCall& call);

[[noreturn]] void throw_wrong_thread(const OpEntry& entry, const MeshInfo& mesh);

// Runs in every call before its local operator. Checks that the calling thread belongs to the mesh's rank, and adds the
// call to the rank's record.
inline void enter_call(const OpEntry& entry, const MeshInfo& mesh, const ThreadState& thread = thread_state()) {
  auto& record = as_mesh_impl(mesh).record();
  if (C10_UNLIKELY(!record.belongs_to_this_thread(thread))) throw_wrong_thread(entry, mesh);
  record.note(entry.text());
}

// Adds the numbers of a call, which ranks compare (comm/record/number_calls.h).
inline void note_numbers(const OpEntry& entry, const MeshInfo& mesh, const CallNumbers& numbers) {
  if (numbers.hash != 0) as_mesh_impl(mesh).history().numbers().add(entry.text(), numbers);
}

}  // namespace dtensor
