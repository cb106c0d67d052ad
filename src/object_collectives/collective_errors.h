// Errors that all ranks raise if any rank fails.
#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <vector>

#include "dtensor/comm.h"

namespace dtensor {

// Reduces each number over the ranks, in place. Collective, unless there are none.
void reduce_numbers(const Communicator& ranks, std::vector<std::int64_t>& numbers, ReduceOp op);

// The errors of the ranks, in order: "rank 2: ...; rank 3: ...", or just the error if it is the same on all. An empty
// text is no error.
std::string list_errors(const std::vector<std::string>& errors);

// list_errors() of all ranks; "" if there is none. Collective.
std::string gather_errors(const Communicator& ranks, const std::string& error);

// Throws on all ranks if any rank passes an error, with all errors: "WHAT: rank 2: ...".
void raise_on_all(const Communicator& ranks, const std::string& what, const std::string& error);

// Runs fn, which must not communicate, and returns its error message.
template <class F>
std::string error_of(const F& fn) {
  try {
    fn();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Runs fn on every rank, then raise_on_all().
template <class F>
void run_on_all(const Communicator& ranks, const std::string& what, const F& fn) {
  raise_on_all(ranks, what, error_of(fn));
}

}  // namespace dtensor
