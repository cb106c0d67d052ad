// The CommBackend of processes that exchange messages in pairs.
#pragma once

#include <memory>

#include "comm/p2p/job/job.h"
#include "dtensor/comm_backend.h"

namespace dtensor::p2p {

std::shared_ptr<CommBackend> make_world_backend(Job& job);

}  // namespace dtensor::p2p
