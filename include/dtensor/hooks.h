// Hooks of parameters: a function that runs when a parameter's gradient is complete, and gradient accumulation without
// synchronisation.
#pragma once

#include <functional>
#include <memory>

#include "dtensor/export.h"
#include "dtensor/tensor.h"

namespace dtensor {

// Called after each accumulation into parameter.grad(), which is in the parameter's placements by then (unless
// NoGradientSync). One hook a tensor.
using GradientReadyHook = std::function<void(const DTensor& parameter)>;
DTENSOR_API void set_gradient_ready_hook(const DTensor& parameter, GradientReadyHook hook);

// For this thread, while it lives: gradients are accumulated as they come, without the reduction to the parameter's
// placements (gradient accumulation without synchronisation). The first gradient's placements stay until the next
// synchronised backward pass brings the sum into the parameter's.
class DTENSOR_API NoGradientSync {
 public:
  NoGradientSync();

  // Whether one lives on this thread.
  static bool current();

  struct Flag {};

 private:
  std::shared_ptr<const void> scope_;
};

}  // namespace dtensor
