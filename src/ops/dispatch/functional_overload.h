// Maps an out= overload to the functional overload that returns the same results.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace dtensor {

// The overload that takes the arguments of `out` without its out= tensors.
c10::OperatorHandle functional_overload(const c10::OperatorHandle& out);

}  // namespace dtensor
