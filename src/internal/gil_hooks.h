// For language runtimes that call ATen while they hold a lock (Python's interpreter lock): a thread rank that waits for
// another must not hold what the other needs to get there.
#pragma once

#include "dtensor/export.h"

namespace dtensor {

// What is done around a wait.
struct GilReleaseHooks {
  void* (*release)() = nullptr;        // gives the lock up where this thread holds it; null where it does not
  void (*reacquire)(void*) = nullptr;  // gets what release() returned, if that was not null
};

// Runs the hooks around every wait of a rank for other ranks that is not over at once, on the thread that waits. Set
// them once, before the first rank starts.
DTENSOR_API void set_gil_release_hooks(GilReleaseHooks hooks);

}  // namespace dtensor
