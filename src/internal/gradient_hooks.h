// Hooks for schedules (fully_shard, gradient accumulation, offload) when the gradient of a leaf arrives, and how they
// accumulate it. Hooks for users are in dtensor/hooks.h.
#pragma once

#include <functional>
#include <string>

#include "dtensor/hooks.h"
#include "dtensor/tensor.h"
#include "internal/nested_backward.h"

namespace dtensor {

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

}  // namespace dtensor
