// Computations of the library that stand for an operator of ATen, of which dispatch modes are shown that operator.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>

namespace dtensor {

// Takes the arguments from the stack and leaves the results of the operator.
using Computation = std::function<void(torch::jit::Stack&)>;

// `shown`: whether the program's modes see what it calls (is_dispatch_mode_active). They are then given the operator
// with these arguments, DTensors among them; where they call it, `compute` runs in its place, hidden. They may keep its
// results and give them out again. Not `shown`: compute(stack).
void run_visible_as_op(const c10::OperatorHandle& op, torch::jit::Stack& stack, bool shown, const Computation& compute);

// For the engine: runs the computation that stands for this call; false: none does.
bool run_visible_call(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace dtensor
