// Overloads with out= and those that return the same results.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace dtensor {

// The overload that takes the same arguments as `out` but for its destinations.
c10::OperatorHandle functional_overload(const c10::OperatorHandle& out);

}  // namespace dtensor
