// run_local with the failed rank and its exception as separate results.
#pragma once

#include <exception>

#include "dtensor/comm.h"

namespace dtensor::local {

struct RunResult {
  int rank = -1;             // the first rank that threw, or the origin of its PeerError; -1: none
  std::exception_ptr error;  // what it threw
};

RunResult run_ranks(int ranks, const std::function<void(Communicator)>& fn, RunOptions options);

}  // namespace dtensor::local
