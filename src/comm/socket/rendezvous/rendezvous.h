// Connects the processes of a job: one stream for each pair.
#pragma once

#include <vector>

#include "comm/socket/rendezvous/admission/peer_acceptor.h"
#include "comm/socket/rendezvous/options.h"

namespace dtensor::sockets {

// Indexed by rank. Throws CommError with the ranks that did not connect within options.timeout.
std::vector<Peer> rendezvous(const RendezvousOptions& options);

// Some kernels (Yama) let processes of one host read each other's memory only after this.
void allow_memory_reads(bool allowed);

}  // namespace dtensor::sockets
