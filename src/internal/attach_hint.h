// How to attach a debugger to a rank.
#pragma once

#include <source_location>
#include <string>

#include "dtensor/comm.h"
#include "dtensor/export.h"

namespace dtensor {

// The text that `debug_rank` prints: rank, host, process, thread, source position, command to attach.
DTENSOR_API std::string attach_hint(const Communicator& comm, std::source_location where);

}  // namespace dtensor
