// Where a schedule (fully_shard, gradient accumulation, offload) takes part in a step: when the engine is about to
// gather a parameter, when a backward pass starts, and when a parameter's gradient is complete.
#pragma once

#include <functional>
#include <memory>

#include "dtensor/export.h"
#include "dtensor/tensor.h"

namespace dtensor {

// Called when an operator needs `parameter` in placements other than its own. May return the local tensor in the
// placements `needed` (gathered ahead of time, with others of its unit); undefined: the engine gathers it itself.
// Called in forward and in backward alike, in the order of the operators, on every rank of the mesh.
using UseHook = std::function<at::Tensor(const DTensor& parameter, const Placements& needed)>;
// One hook a tensor; an empty function removes it. The hook must not hold the tensor itself.
DTENSOR_API void set_use_hook(const DTensor& parameter, UseHook hook);

// Called after each accumulation into parameter.grad(), which is in the parameter's placements by then (unless
// NoGradientSync). One hook a tensor.
using GradientHook = std::function<void(const DTensor& parameter)>;
DTENSOR_API void set_gradient_hook(const DTensor& parameter, GradientHook hook);

// While it lives, `callback` runs on this thread at the first operator of each backward pass that runs on it.
class DTENSOR_API BackwardStartListener {
 public:
  explicit BackwardStartListener(std::function<void()> callback);
  ~BackwardStartListener();
  BackwardStartListener(const BackwardStartListener&) = delete;
  BackwardStartListener& operator=(const BackwardStartListener&) = delete;

  static void notify();  // the engine's call, before an operator of this thread

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// For this thread, while it lives: gradients are accumulated as they come, without the reduction to the parameter's
// placements (gradient accumulation without synchronisation). The first gradient's placements stay until the next
// synchronised backward pass brings the sum into the parameter's.
class DTENSOR_API NoGradientSync {
 public:
  NoGradientSync();
  ~NoGradientSync();
  NoGradientSync(const NoGradientSync&) = delete;
  NoGradientSync& operator=(const NoGradientSync&) = delete;

 private:
  bool previous_;
};

}  // namespace dtensor
