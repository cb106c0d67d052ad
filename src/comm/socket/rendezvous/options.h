// Where and how the processes of a job meet.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace dtensor::sockets {

// Rank 0 listens at `port` of `host` or at one of the next nine ports. Other jobs and other services on a port
// (torchrun's own store) are detected and skipped.
struct RendezvousOptions {
  std::string host;
  int port = 0;
  int rank = 0;
  int size = 1;
  std::uint64_t job = 0;  // equal on all ranks, different between jobs
  std::chrono::milliseconds timeout{60000};
  std::string secret;  // known to all processes of the job; empty: every process that can connect is trusted
};
inline constexpr int kPorts = 10;

}  // namespace dtensor::sockets
