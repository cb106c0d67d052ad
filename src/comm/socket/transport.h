// Messages between processes over streams.
#pragma once

#include <memory>
#include <vector>

#include "comm/pairwise/transport.h"
#include "comm/socket/meet.h"

namespace dtensor::sockets {

std::unique_ptr<pairwise::Transport> make_transport(int rank, std::vector<Met> met);

}  // namespace dtensor::sockets
