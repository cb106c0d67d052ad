// Exceptions become status codes with a text, and ranks agree on the arguments of a call. Exported for the library
// dtensor_torchscript.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>

#include "dtensor/bit_identical.h"
#include "dtensor/c/dtensor.h"
#include "dtensor/comm.h"

namespace dtensor::c {

// The status of the exception that is being handled. Its text becomes that of dtensor_last_error().
DTENSOR_API dtensor_status report_current_exception(const char* caller) noexcept;

// The function of the C interface that this thread runs, which agree() compares between ranks.
class DTENSOR_API FunctionScope {
 public:
  explicit FunctionScope(const char* name);
  ~FunctionScope();
  FunctionScope(const FunctionScope&) = delete;
  FunctionScope& operator=(const FunctionScope&) = delete;

 private:
  const char* former_;
};

// The scope that dtensor_set_bit_identical has set for this thread's calls; null: none.
DTENSOR_API std::unique_ptr<const BitIdentical> bit_identical_scope();

// Runs the body of the function `caller` of the C interface.
template <class Body>
dtensor_status guarded(const char* caller, const Body& body) noexcept {
  const FunctionScope scope(caller);
  try {
    const auto same_bits = bit_identical_scope();
    body();
    return DTENSOR_OK;
  } catch (...) {
    return report_current_exception(caller);
  }
}

// Counts a call that failed on this rank (dtensor_last_error() has the text), so that ranks that did not fail in it get
// an error instead of taking part in this rank's next call. The first valid handle tells the communicator; without one
// the call counts on all communicators of MPI.
DTENSOR_API void count_failed_call(std::initializer_list<const void*> handles) noexcept;

// The same for a function that every rank of the mesh calls. `handles` are its handles, valid or not.
template <class Body>
dtensor_status guarded_on_all(const char* caller, std::initializer_list<const void*> handles,
                              const Body& body) noexcept {
  const dtensor_status status = guarded(caller, body);
  if (status != DTENSOR_OK && status != DTENSOR_COMMUNICATION) count_failed_call(handles);
  return status;
}

// `describe` checks this rank's arguments, and returns a text of those that must be equal on all ranks. If it throws on
// a rank, or if the texts differ, every rank throws the same c10::ValueError. If the ranks run different functions,
// every rank throws CommError. Collective.
DTENSOR_API void agree(const Communicator& ranks, const std::function<std::string()>& describe);

// `on` is 0 or 1, and the same on all ranks. Collective.
void agree_on_switch(const Communicator& ranks, int on);

// All digits of a number: equal texts mean equal numbers.
std::string digits(double number);

}  // namespace dtensor::c
