// Collectives of checkpoints: sums of numbers, and errors that all ranks raise if any rank fails.
#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <vector>

#include "checkpoint/format/checksum.h"
#include "dtensor/comm.h"
#include "object_collectives/object_collectives.h"

namespace dtensor::files {

void reduce_numbers(const Communicator& ranks, std::vector<std::int64_t>& numbers, ReduceOp op);
// The sum of all ranks' checksums.
std::vector<Checksum> sum_over_ranks(const Communicator& ranks, const std::vector<Checksum>& own);

// The non-empty errors of all ranks, equal on all: "rank 2: ...; rank 3: ...", or just the error if it is the same on
// all.
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
    return std::string("") + error.what();
  }
  return "";
}

// Runs fn on every rank, then raise_on_all().
template <class F>
void run_on_all(const Communicator& ranks, const std::string& what, const F& fn) {
  raise_on_all(ranks, what, error_of(fn));
}

}  // namespace dtensor::files
