// The transport between processes over streams.
#pragma once

#include <memory>
#include <vector>

#include "comm/p2p/transport.h"
#include "comm/socket/rendezvous/rendezvous.h"

namespace dtensor::sockets {

std::unique_ptr<p2p::Transport> make_transport(int rank, std::vector<Peer> peers);

}  // namespace dtensor::sockets
