// The CommBackend of thread ranks.
#pragma once

#include <memory>

#include "comm/local/group.h"

namespace dtensor::local {

std::shared_ptr<Group> make_world_group(std::shared_ptr<World> world);
std::shared_ptr<CommBackend> make_backend(std::shared_ptr<Group> group, int me);

}  // namespace dtensor::local
