// Decides when blocks are kept: not under sanitizers, and no longer when the thread ends.
#include "scope/free_blocks.h"

#include <utility>

#include "scope/thread_state.h"

namespace dtensor {

// Returns false if the list is full or the thread is ending.
bool FreeListAllocator::begin() {
#if C10_ASAN_ENABLED || defined(__SANITIZE_THREAD__)
  return false;
#endif
  if (std::exchange(begun_, true)) return false;
  struct ThreadExitGuard {
    ~ThreadExitGuard() { thread_state().tensor_memory.end(); }
  };
  static thread_local const ThreadExitGuard at_end;
  static_cast<void>(&at_end);
  most_ = kMaxFreeBlocks;
  return true;
}

// Later destructors of the thread may still free tensors, so the list stays usable.
void FreeListAllocator::end() {
  most_ = 0;
  while (first_ != nullptr) ::operator delete(std::exchange(first_, first_->next));
  count_ = 0;
}

}  // namespace dtensor
