// Reports the kind of a tensor's memory to the listener that observes this thread's allocations, if there is one.
#include "internal/memory_kind.h"

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "internal/simulated.h"

namespace dtensor {
namespace {

thread_local MemoryKind current_kind = MemoryKind::activation;

}  // namespace

MemoryKindScope::MemoryKindScope(MemoryKind kind) : outer_(current_kind) { current_kind = kind; }
MemoryKindScope::~MemoryKindScope() { current_kind = outer_; }
MemoryKind MemoryKindScope::current() { return current_kind; }

void set_memory_kind(const at::Tensor& local, MemoryKind kind) {
  auto* state = c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
  if (state == nullptr || !local.defined() || !local.has_storage()) return;
  auto* listener = dynamic_cast<MemoryKindListener*>(state);
  if (listener == nullptr) return;
  listener->set_kind(reported_address(local), kind);
}

}  // namespace dtensor
