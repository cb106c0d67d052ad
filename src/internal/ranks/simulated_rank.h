// Runs one rank without its peers, or with some of them.
#pragma once

#include <functional>

#include "dtensor/comm.h"

namespace dtensor {

// The rank that runs, of how many, and fields of DryRunOptions.
struct SimulatedRanks {
  int ranks = 1, rank = 0;
  bool asynchronous = false, staging = false;
};

// Runs fn on a thread of its own as that rank, with the communicator of all ranks, and waits also for the ranks that
// simulate_all_members has started. Rethrows what fn throws.
void run_simulated_rank(const SimulatedRanks& which, const std::function<void(Communicator)>& fn);

// For members that do different things, such as the stages of a pipeline: one rank cannot stand for its peers. In a dry
// run, starts the members that do not run, each with the function of the dry run from its beginning. From now on, the
// members exchange real tensors through `group`. Otherwise does nothing.
void simulate_all_members(const Communicator& group);

}  // namespace dtensor
