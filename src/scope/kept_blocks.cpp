#include "scope/kept_blocks.h"

#include <utility>

#include "scope/thread_state.h"

namespace dtensor {

// False: there is no room, or keeping is over.
bool KeptBlocks::begin() {
#if C10_ASAN_ENABLED || defined(__SANITIZE_THREAD__)
  return false;
#endif
  if (std::exchange(begun_, true)) return false;
  struct AtEndOfThread {
    ~AtEndOfThread() { thread_state().tensors.end(); }
  };
  static thread_local const AtEndOfThread at_end;
  static_cast<void>(&at_end);
  most_ = kMost;
  return true;
}

// Later destructors of the thread may still free tensors.
void KeptBlocks::end() {
  most_ = 0;
  while (first_ != nullptr) ::operator delete(std::exchange(first_, first_->next));
  count_ = 0;
}

}  // namespace dtensor
