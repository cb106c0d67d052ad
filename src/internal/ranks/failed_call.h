// Calls of the library that fail on some ranks only, before they communicate.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <string>

#include "dtensor/comm.h"

namespace dtensor {

// This rank ends a collective call on `ranks` with `error`, before it communicates. If the other members do not, the
// next collective of `ranks` is a CommError on every member.
void skip_call(const Communicator& ranks, const std::string& error);
// Runs `call`, which is collective on each of `groups`. Calls skip_call() on them if it throws c10::Error.
template <class Call>
auto skipped_if_invalid(c10::ArrayRef<Communicator> groups, const Call& call) {
  try {
    return call();
  } catch (const c10::Error& error) {
    for (const auto& ranks : groups) skip_call(ranks, error.what_without_backtrace());
    throw;
  }
}

// skip_call() for all communicators of the job of `ranks`. Members that wait for this rank get the error at once.
void report_failed_call(const Communicator& ranks, const std::string& error);
// The same for all jobs of this process, if the communicator of the call is unknown.
void report_failed_call(const std::string& error);

}  // namespace dtensor
