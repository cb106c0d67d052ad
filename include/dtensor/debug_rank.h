// Stops one rank of a program for a debugger while the other ranks wait.
#pragma once

#include <functional>
#include <source_location>
#include <string>

#include "dtensor/comm.h"
#include "dtensor/export.h"

namespace dtensor {

// Argument of debug_rank: each rank stops, one after the other.
constexpr int kAllRanksSequentially = -1;

// Called by every rank of `comm`. Rank `rank` stops at this line; the other ranks wait without a timeout. If the run
// fails, all ranks throw. The stopped rank prints its position and the command to attach a debugger. When a debugger is
// attached, the thread traps here, a few frames below the caller; after `continue`, all ranks go on. `stop` replaces
// the trap.
DTENSOR_API void debug_rank(const Communicator& comm, int rank = 0, const std::function<void()>& stop = {},
                            std::source_location where = std::source_location::current());

// The text that `debug_rank` prints: rank, host, process, thread, source position, command to attach.
DTENSOR_API std::string attach_hint(const Communicator& comm, std::source_location where);

}  // namespace dtensor
