// The processes of a job find and connect each other: every pair by one stream.
#pragma once

#include <sys/types.h>

#include <vector>

#include "comm/socket/rendezvous/store.h"
#include "comm/socket/stream.h"

namespace dtensor::sockets {

struct Peer {
  Stream stream;  // not open for this rank itself
  bool same_host = false;
  pid_t readable = 0;  // the process whose memory this one may read, or 0
};

// By rank. Throws CommError naming the rank that did not come within options.timeout.
std::vector<Peer> rendezvous(const RendezvousOptions& options);

}  // namespace dtensor::sockets
