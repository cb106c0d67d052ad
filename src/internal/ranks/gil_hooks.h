// Hooks for language runtimes that call ATen while they hold a lock (Python's GIL). A thread rank that waits for
// another one must release the lock that the other rank may need.
#pragma once

#include "dtensor/export.h"

namespace dtensor {

// Called before and after a wait.
struct GilReleaseHooks {
  void* (*release)() = nullptr;        // releases the lock; returns null if this thread does not hold it
  void (*reacquire)(void*) = nullptr;  // receives the result of release(), unless it was null
};

// Sets the hooks, which run on the waiting thread around every blocking wait of a rank for other ranks. Call it once,
// before the first rank starts.
DTENSOR_API void set_gil_release_hooks(GilReleaseHooks hooks);

}  // namespace dtensor
