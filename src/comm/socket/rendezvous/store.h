// A key-value table on rank 0, accessed over TCP, through which the processes of a job connect.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace dtensor::sockets {

// The location of a job's table: at `port` or one of the next nine ports. Other jobs and other services on a port
// (torchrun's own store) are detected and skipped.
struct RendezvousOptions {
  std::string host;
  int port = 0;
  int rank = 0;
  int size = 1;
  std::uint64_t job = 0;  // equal on all ranks, different between jobs
  std::chrono::milliseconds timeout{60000};
};

class Store {
 public:
  // On rank 0, also serves the table, on threads that live as long as the process, since a peer may send a request
  // late. Later jobs use the same port. Throws CommError if none of the ports is available.
  explicit Store(RendezvousOptions options);

  void put(const std::string& key, const std::string& value);
  // Waits until the key exists. Both functions throw CommError after the timeout.
  std::string get(const std::string& key);
  // The address of this host on the connection to rank 0; empty before the first put or get.
  const std::string& own_host() const { return own_host_; }

 private:
  bool ask(int port, std::chrono::steady_clock::time_point deadline, bool put, const std::string& key,
           std::string& value);
  void ask_all(bool put, const std::string& key, std::string& value);

  RendezvousOptions options_;
  int found_ = -1;  // the port that answered
  std::string own_host_;
};

}  // namespace dtensor::sockets
