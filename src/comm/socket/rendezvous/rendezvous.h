// Connects the processes of a job: one stream for each pair.
#pragma once

#include <sys/types.h>

#include <vector>

#include "comm/socket/rendezvous/store.h"
#include "comm/socket/stream.h"

namespace dtensor::sockets {

struct Peer {
  Stream stream;  // not open for this rank itself
  bool same_host = false;
  pid_t readable = 0;  // the process whose memory this process can read, or 0
};

// Indexed by rank. Throws CommError with the rank that did not connect within options.timeout.
std::vector<Peer> rendezvous(const RendezvousOptions& options);

}  // namespace dtensor::sockets
