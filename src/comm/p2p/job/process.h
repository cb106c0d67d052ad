// The life of one connected process of a launched program, from its first call to the common end of all ranks.
#pragma once

#include <functional>
#include <memory>

#include "comm/p2p/transport.h"
#include "dtensor/comm.h"

namespace dtensor::p2p {

// Runs fn and returns the exit status; does not return if a rank failed.
int run_process(std::unique_ptr<Transport> transport, const std::function<void(Communicator)>& fn, RunOptions options);

}  // namespace dtensor::p2p
