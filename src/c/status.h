// Exceptions become status codes with a text, and ranks agree on the arguments of a call. Exported for the library
// dtensor_torchscript.
#pragma once

#include <functional>
#include <string>

#include "dtensor/c/dtensor.h"
#include "dtensor/comm.h"

namespace dtensor::c {

// The status of the exception that is being handled. Its text becomes that of dtensor_last_error().
DTENSOR_API dtensor_status report_current_exception(const char* caller) noexcept;

// Runs the body of the function `caller` of the C interface.
template <class Body>
dtensor_status guarded(const char* caller, const Body& body) noexcept {
  try {
    body();
    return DTENSOR_OK;
  } catch (...) {
    return report_current_exception(caller);
  }
}

// `describe` checks this rank's arguments, and returns a text of those that must be equal on all ranks. If it throws on
// a rank, or if the texts differ, every rank throws the same c10::ValueError. Collective.
DTENSOR_API void agree(const Communicator& ranks, const std::function<std::string()>& describe);

}  // namespace dtensor::c
