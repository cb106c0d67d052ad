// Where the processes of a job meet, from the variables that torchrun, Slurm or the user set.
#pragma once

#include <chrono>

#include "comm/launch/launchers.h"
#include "comm/socket/rendezvous/store.h"

namespace dtensor::sockets {

// Throws LaunchError where they do not say.
RendezvousOptions rendezvous_options(const LauncherEnvironment& environment, std::chrono::milliseconds timeout);

}  // namespace dtensor::sockets
