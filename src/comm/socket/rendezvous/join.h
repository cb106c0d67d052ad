// How a rank above 0 joins its job at rank 0.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "comm/socket/rendezvous/messages.h"
#include "comm/socket/rendezvous/options.h"
#include "comm/socket/stream.h"

namespace dtensor::sockets {

// Listens on an address of this host, and returns what the other ranks need to connect.
using Listen = std::function<Member(const std::string& own_address)>;

// Finds rank 0, joins, and waits until all have joined. Returns the members, with an address for each of them. Throws
// CommError within options.timeout. Says on stderr whom this rank waits for.
std::vector<Member> join_job(const RendezvousOptions& options, const Listen& listen);

// The same over a connection. Empty: the other end serves no job or another one, or it closed.
std::vector<Member> join_over(const Stream& stream, int port, const RendezvousOptions& options,
                              std::chrono::milliseconds answer_time, std::chrono::milliseconds time,
                              const Listen& listen);

}  // namespace dtensor::sockets
