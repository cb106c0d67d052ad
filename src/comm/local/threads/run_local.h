// run_local for those who want the failed rank apart from its error.
#pragma once

#include <exception>

#include "dtensor/comm.h"

namespace dtensor::local {

struct RunResult {
  int rank = -1;             // of the first that threw, or whose exception that one's PeerError told of; -1: none
  std::exception_ptr error;  // what it threw
};

RunResult run_ranks(int ranks, const std::function<void(Communicator)>& fn, RunOptions options);

}  // namespace dtensor::local
