// Backward passes inside another one, and callbacks for the end of the outer one.
#pragma once

#include <functional>

#include "dtensor/export.h"
#include "internal/scoped_value.h"

namespace dtensor {

// Id of the innermost backward pass that runs on this thread; -1 if none.
DTENSOR_API int current_backward_id();

// Calls `callback` on this thread at the end of that pass, after its gradients are accumulated.
DTENSOR_API void queue_backward_callback(std::function<void()> callback);

// During its lifetime, a backward pass that starts on this thread belongs to the current one (recomputation). It has
// the same id, and callbacks for its end run at the end of the current one.
class DTENSOR_API NestedBackwardGuard {
 public:
  NestedBackwardGuard();
  ~NestedBackwardGuard();
  NestedBackwardGuard(const NestedBackwardGuard&) = delete;
  NestedBackwardGuard& operator=(const NestedBackwardGuard&) = delete;
};

// Marks code on this thread that runs without grad mode but is part of a training step, because it is recomputed in
// backward. Schedules use it to distinguish training from inference.
class DTENSOR_API RecomputeGuard {
 public:
  RecomputeGuard();
  // Whether a guard is active on this thread.
  static bool current();

  struct Flag {};

 private:
  ScopedValue<Flag> scope_;
};

}  // namespace dtensor
