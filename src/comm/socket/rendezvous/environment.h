// The rendezvous address and the secret of a job's processes, from the variables that torchrun, Slurm or the user set.
#pragma once

#include <chrono>

#include "comm/launch/launchers.h"
#include "comm/socket/rendezvous/options.h"

namespace dtensor::sockets {

// Throws LaunchError if they do not define it.
RendezvousOptions rendezvous_options(const LauncherEnvironment& environment, std::chrono::milliseconds timeout);

}  // namespace dtensor::sockets
