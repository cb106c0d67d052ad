// The CommBackend over processes that exchange messages in pairs.
#pragma once

#include <memory>

#include "comm/pairwise/job.h"
#include "dtensor/comm_backend.h"

namespace dtensor::pairwise {

std::shared_ptr<CommBackend> make_world_backend(Job& job);

}  // namespace dtensor::pairwise
