// Stopping one rank of a program for a debugger while the others wait for it.
#pragma once

#include <functional>
#include <source_location>
#include <string>

#include "dtensor/comm.h"
#include "dtensor/export.h"

namespace dtensor {

// For debug_rank: each rank stops, one after the other.
constexpr int kAllRanksSequentially = -1;

// Called by every rank of `comm`: rank `rank` stops at this line, the others wait, however long it takes, or until the
// run fails, which all ranks then throw. The stopped rank prints where it is and how to attach to it. As soon as a
// debugger is attached, the thread traps into it here (the caller is a few frames up); `continue` lets all ranks go on.
// `stop`: what the stopped rank does instead.
DTENSOR_API void debug_rank(const Communicator& comm, int rank = 0, const std::function<void()>& stop = {},
                            std::source_location where = std::source_location::current());

// What `debug_rank` prints: rank, host, process, thread, place, command to attach.
DTENSOR_API std::string attach_hint(const Communicator& comm, std::source_location where);

// While one lives anywhere in this process, waiting for other ranks does not time out (threads and MPI; NCCL's own
// watchdog still does).
class DTENSOR_API NoTimeout {
 public:
  NoTimeout();
  ~NoTimeout();
  NoTimeout(const NoTimeout&) = delete;
  NoTimeout& operator=(const NoTimeout&) = delete;
};

}  // namespace dtensor
