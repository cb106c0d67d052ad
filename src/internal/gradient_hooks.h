// Where a schedule (fully_shard, gradient accumulation, offload) takes part in a step: when an operator is about to
// gather a parameter, when a leaf's gradient arrives, and when a backward pass ends. Hooks for users are in
// dtensor/hooks.h.
#pragma once

#include <functional>

#include "dtensor/export.h"
#include "dtensor/hooks.h"
#include "dtensor/tensor.h"
#include "internal/scoped_value.h"

namespace dtensor {

// Called when an operator needs `parameter`, or a view or cast of it, gathered: with the parameter's placements,
// storage shards made Replicate, and the dtype that the operator sees. May return the parameter's local tensor in those
// placements, of any dtype that casts to the one asked for without loss (gathered ahead of time, with others of its
// unit); undefined: the engine gathers the operand itself. Called in forward and in backward alike, in the order of the
// operators, on every rank of the mesh.
using GatherHook =
    std::function<at::Tensor(const DTensor& parameter, const Placements& gathered, at::ScalarType dtype)>;

// One hook a tensor; an empty function removes it. The hook must not hold the tensor itself. Views and casts find the
// hooks of their parameter if they were made after the first was set.
DTENSOR_API void set_gather_hook(const DTensor& parameter, GatherHook hook);

// The hook of this tensor; null: none.
DTENSOR_API const GatherHook* gather_hook(const DTensor& parameter);

// For code that computes on local tensors: what an operator would get of `operand` (a parameter, or a view or cast of
// one) in these placements. From the schedule where that has it, else redistributed; without a graph.
DTENSOR_API at::Tensor gathered_local(const DTensor& operand, const Placements& wanted);

// Takes over a leaf's gradient: called once for each backward pass that reaches the leaf (unless NoGradientSync), with
// the sum of what the operators gave, as it came (Partial, mostly). parameter.grad() is left as it was; the schedule
// reduces, with others of its unit, and calls accumulate_gradient.
using ReduceHook = std::function<void(const DTensor& parameter, const at::Tensor& gradient)>;
DTENSOR_API void set_reduce_hook(const DTensor& parameter, ReduceHook hook);

// Makes a leaf's gradient one that the functions above and below see. Operators do so for their operands; for code that
// computes with a parameter's local tensor and gives its gradient by a node of its own.
DTENSOR_API void watch_gradient(const DTensor& leaf);

// Whether backward passes reduce this leaf's gradient; false: they accumulate it as under NoGradientSync. Default:
// true.
DTENSOR_API void set_gradient_sync(const DTensor& parameter, bool on);

// What a gradient is reduced to: the parameter's placements without storage flags, Partial made Replicate.
DTENSOR_API Placements gradient_placements(const DTensor& parameter);

// Adds to parameter.grad(), or sets it, and calls the gradient hook.
DTENSOR_API void accumulate_gradient(const DTensor& parameter, const DTensor& gradient);

// The same of a gradient given by this rank's part, in the parameter's dtype and with these placements on its mesh; the
// part is taken over. Throws where its sizes or dtype are others.
DTENSOR_API void accumulate_gradient(const DTensor& parameter, at::Tensor local, const Placements& placements);

// What NoGradientSync or NoReplicaSync left in a leaf's .grad, taken out to be reduced together with a new gradient. It
// comes back where that fails: where this ends without done().
class DTENSOR_API UnsynchronizedGradient {
 public:
  UnsynchronizedGradient() = default;
  explicit UnsynchronizedGradient(const DTensor& leaf);
  ~UnsynchronizedGradient();
  UnsynchronizedGradient(UnsynchronizedGradient&&) noexcept = default;
  UnsynchronizedGradient& operator=(UnsynchronizedGradient&&) noexcept = default;  // gives nothing back

  const at::Tensor& sum() const { return sum_; }  // undefined: there was none
  // It is part of what is accumulated next.
  void done() { sum_.reset(); }

 private:
  DTensor leaf_;
  at::Tensor sum_;
};

// The number of the backward pass that runs on this thread (the innermost, where they nest); -1: none.
DTENSOR_API int current_backward_id();

// Calls `callback` on this thread when that pass ends, once its gradients are accumulated.
DTENSOR_API void queue_backward_callback(std::function<void()> callback);

// While it lives, a backward pass that is started on this thread is part of the one that runs there (recomputation):
// it has the number of that one, and what is to be done at its end is done at the end of that one.
class DTENSOR_API NestedBackwardGuard {
 public:
  NestedBackwardGuard();
  ~NestedBackwardGuard();
  NestedBackwardGuard(const NestedBackwardGuard&) = delete;
  NestedBackwardGuard& operator=(const NestedBackwardGuard&) = delete;
};

// For this thread, while it lives: what runs without grad mode is part of a training step all the same, since it runs
// again in backward (recomputation). A schedule tells it from inference by that.
class DTENSOR_API RecomputeGuard {
 public:
  RecomputeGuard();
  // Whether one lives on this thread.
  static bool current();

  struct Flag {};

 private:
  ScopedValue<Flag> scope_;
};

}  // namespace dtensor
