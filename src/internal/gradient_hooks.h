// Hooks for schedules (fully_shard, gradient accumulation, offload): before an operator gathers a parameter, when the
// gradient of a leaf arrives, and when a backward pass ends. Hooks for users are in dtensor/hooks.h.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "dtensor/export.h"
#include "dtensor/hooks.h"
#include "dtensor/tensor.h"
#include "internal/scoped_value.h"

namespace dtensor {

// Called when an operator needs `parameter`, or a view or cast of it, gathered. `gathered` are the parameter's
// placements with Replicate for storage shards; `dtype` is the dtype that the operator sees. The hook may return the
// local tensor in those placements, for example one that was prefetched with its unit. It may have any dtype that casts
// to `dtype` without loss. If it returns an undefined tensor, the operator kernel gathers the operand. Called in
// forward and backward, in the order of the operators, on every rank of the mesh.
using GatherHook =
    std::function<at::Tensor(const DTensor& parameter, const Placements& gathered, at::ScalarType dtype)>;

// One hook per tensor; an empty function removes it. The hook must not hold the tensor itself. Views and casts find the
// hooks of their parameter only if they are created after the first hook is set.
DTENSOR_API void set_gather_hook(const DTensor& parameter, GatherHook hook);

// The hook of this tensor, or null.
DTENSOR_API const GatherHook* gather_hook(const DTensor& parameter);

// For code that computes on local tensors: the local tensor that an operator would get for `operand` in these
// placements. `operand` is a parameter, or a view or cast of one. It comes from the gather hook if possible, otherwise
// from redistribution. Records no graph.
DTENSOR_API at::Tensor gathered_local(const DTensor& operand, const Placements& wanted);

// Takes over the gradient of a leaf. Called for each gradient that reaches the leaf (usually one per backward pass),
// unless NoGradientSync is active. `gradient` has its original placements (usually Partial). parameter.grad() is
// unchanged. The schedule reduces the gradient, together with others of its unit, and calls accumulate_gradient.
// Returns whether it takes the gradient; if not, the gradient pipeline reduces it alone, in its graph if there is one.
using ReduceStage = std::function<bool(const DTensor& parameter, const at::Tensor& gradient)>;
// `name` (NamedCallScope) of reductions by the gradient pipeline; empty: none.
DTENSOR_API void set_reduce_stage(const DTensor& parameter, ReduceStage hook, std::string name = {});

// Registers a leaf whose gradient the functions of this header handle. Operators register their operands. Call it in
// code that computes with a parameter's local tensor and returns its gradient from a node of its own.
DTENSOR_API void watch_gradient(const DTensor& leaf);

// The gradient of `leaf` goes where its accumulator sends it, in the placements in which autograd computed it.
DTENSOR_API void leave_gradient_to_accumulator(const DTensor& leaf);

// Whether backward passes reduce this leaf's gradient. If false, they accumulate it as under NoGradientSync. Default:
// true.
DTENSOR_API void set_gradient_sync(const DTensor& parameter, bool on);

// Placements of a reduced gradient: those of the parameter without storage flags, with Replicate for Partial.
DTENSOR_API Placements gradient_placements(const DTensor& parameter);

// Adds to parameter.grad(), or sets it, and calls the gradient hook.
DTENSOR_API void accumulate_gradient(const DTensor& parameter, const DTensor& gradient);

// The same for a gradient given as this rank's local tensor, in the parameter's dtype, with these placements on the
// parameter's mesh. It may keep or change `local`. Throws if sizes or dtype differ.
DTENSOR_API void accumulate_gradient(const DTensor& parameter, at::Tensor local, const Placements& placements);

// Whether no tensor refers to the memory of `gradient` except this number of handles of it and of its local tensor. A
// view keeps its base alive, as other views of that base do.
DTENSOR_API bool owns_memory_alone(const at::Tensor& gradient, std::size_t handles, const at::Tensor& local,
                                   std::size_t local_handles);

// Takes the gradient that NoGradientSync or NoReplicaSync accumulated out of a leaf's .grad, to reduce it with a new
// gradient. The destructor restores it, unless done() was called.
class DTENSOR_API UnsynchronizedGradient {
 public:
  UnsynchronizedGradient() = default;
  explicit UnsynchronizedGradient(const DTensor& leaf);
  ~UnsynchronizedGradient();
  UnsynchronizedGradient(UnsynchronizedGradient&&) noexcept = default;
  UnsynchronizedGradient& operator=(UnsynchronizedGradient&&) noexcept = default;  // does not restore the gradient

  const at::Tensor& sum() const { return sum_; }  // undefined if there was none
  // Call it once the sum is part of the next accumulated gradient.
  void done() { sum_.reset(); }

 private:
  DTensor leaf_;
  at::Tensor sum_;
};

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
