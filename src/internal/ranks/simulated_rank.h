// Runs one rank without its peers.
#pragma once

#include <functional>

#include "dtensor/comm.h"

namespace dtensor {

// The rank that runs, of how many, and whether collectives run in the background.
struct SimulatedRanks {
  int ranks = 1, rank = 0;
  bool asynchronous = false;
};

// Runs fn on a thread of its own with the communicator of all ranks. Rethrows what it throws.
void run_simulated_rank(const SimulatedRanks& which, const std::function<void(Communicator)>& fn);

}  // namespace dtensor
