// Parameter hooks that run when a gradient is complete, and gradient accumulation without synchronization.
#pragma once

#include <functional>
#include <memory>

#include "dtensor/export.h"
#include "dtensor/tensor.h"

namespace dtensor {

// Called after each accumulation into parameter.grad(). The gradient then has the parameter's placements, unless
// NoGradientSync is active. One hook per tensor.
DTENSOR_API void set_gradient_ready_hook(const DTensor& parameter, std::function<void(const DTensor& parameter)> hook);

// Affects this thread during its lifetime: gradients are accumulated without the reduction to the parameter's
// placements (gradient accumulation without synchronization). The sum keeps the first gradient's placements until the
// next synchronized backward pass redistributes it to the parameter's.
class DTENSOR_API NoGradientSync {
 public:
  NoGradientSync();

  // Whether an instance is alive on this thread.
  static bool current();

  struct Flag {};

 private:
  std::shared_ptr<const void> scope_;
};

}  // namespace dtensor
