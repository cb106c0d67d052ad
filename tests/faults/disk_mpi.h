// A rank that is stopped, or slow, while it reads or writes a checkpoint.
#pragma once

#include <string>

#include "dtensor/comm.h"

namespace dtensor::test {

// `fault` is "stop" or "slow", `call` "save", "save_async" or "load", on rank 1 at its first transfer. A stopped rank
// continues after five seconds. `folder` is for the checkpoint.
void run_disk_fault(const Communicator& world, const std::string& fault, const std::string& call,
                    const std::string& folder);

}  // namespace dtensor::test
