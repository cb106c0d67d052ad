// The wait hooks: set once by a language's binding, null in C++ programs.
#include "comm/released_lock.h"

#include "dtensor/wait_hooks.h"

namespace dtensor {
namespace {

WaitHooks hooks;

}  // namespace

void set_wait_hooks(WaitHooks wanted) { hooks = wanted; }

ReleasedLock::ReleasedLock() {
  if (hooks.release != nullptr) held_ = hooks.release();
}

ReleasedLock::~ReleasedLock() {
  if (held_ != nullptr) hooks.take_back(held_);
}

}  // namespace dtensor
