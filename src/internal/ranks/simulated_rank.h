// Runs one rank without its peers.
#pragma once

#include <functional>

#include "dtensor/comm.h"

namespace dtensor {

// Runs fn on a thread of its own as `rank` of `ranks`, with the communicator of all ranks. Rethrows what it throws.
void run_simulated_rank(int ranks, int rank, const std::function<void(Communicator)>& fn);

}  // namespace dtensor
