// The boxed kernel that stands under ATen's dispatcher for every operator, and its registration.
#pragma once

#include "comm/record/rank_record.h"
#include "mesh/mesh_impl.h"
#include "ops/cache/cached_call.h"
#include "ops/dispatch/kernel_guard.h"
#include "ops/dispatch/operator_entry.h"

namespace dtensor {

// One call: key, cache, decision, execution. The arguments are on top of `stack`.
void run_operator(const OpEntry& entry, torch::jit::Stack& stack);

// The same below the engine's guards and without a special kernel, for special kernels that decline.
void run_by_rule(const OpEntry& entry, torch::jit::Stack& stack);

// Whether a scope is open that wants to see each call of an operator (listeners, explanations, kept results, checks).
bool any_operator_observer();

// tensor/impl/call_error.h for a decided call.
[[noreturn]] void rethrow_with_cached_call(const OpEntry& entry, const CachedCall& call);

[[noreturn]] void throw_wrong_thread(const OpEntry& entry, const MeshInfo& mesh);

// Every call, before anything of it runs: in the rank's record, and only by the rank's own threads.
inline void enter_call(const OpEntry& entry, const MeshInfo& mesh, const ThreadState& thread = thread_state()) {
  auto& record = as_mesh_impl(mesh).record();
  if (C10_UNLIKELY(!record.belongs_to_this_thread(thread))) throw_wrong_thread(entry, mesh);
  record.note(entry.text());
}

// Registers the kernels. Idempotent, thread-safe; every public entry point that makes a DTensor calls it (in a static
// archive nothing else would).
void ensure_registered();

}  // namespace dtensor
