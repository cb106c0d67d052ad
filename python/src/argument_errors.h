// Wrong arguments of bound functions.
#pragma once

#include <pybind11/pybind11.h>

namespace dtensor::python {

// Replaces the text of the TypeErrors that pybind11's functions of `module` and of its classes raise for their
// arguments (all signatures and the call) by the one of dtensor._argument_errors, which names the argument. Calls that
// succeed cost one more branch. Call it after everything is bound.
void explain_argument_errors(pybind11::module_& module);

}  // namespace dtensor::python
