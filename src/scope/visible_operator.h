// Computations of the library that dispatch modes see as an ATen operator.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>

namespace dtensor {

// Pops the operator's arguments from the stack and pushes its results.
using Computation = std::function<void(torch::jit::Stack&)>;

// `shown` means that dispatch modes are active (is_dispatch_mode_active). They then receive the operator with these
// arguments, including DTensors. When they call it, `compute` runs instead, hidden from them. They may keep its results
// and return them again. If not `shown`, this is compute(stack).
void run_visible_as_op(const c10::OperatorHandle& op, torch::jit::Stack& stack, bool shown, const Computation& compute);

// For the operator kernel: runs the computation of the current visible call, if this is its operator; otherwise returns
// false.
bool run_visible_call(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace dtensor
