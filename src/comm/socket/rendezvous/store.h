// A small table on rank 0, asked over TCP, with which the processes of a job find each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace dtensor::sockets {

// Where the table of a job is. Other jobs, and other services on the port (torchrun's own store), are recognised and
// passed over: the table is at `port` or one of the next nine.
struct RendezvousOptions {
  std::string host;
  int port = 0;
  int rank = 0;
  int size = 1;
  std::uint64_t job = 0;  // the same on all ranks, another for other jobs
  std::chrono::milliseconds timeout{60000};
};

class Store {
 public:
  // On rank 0 also serves the table, on threads that live as long as the process: a peer may ask late. Tables of later
  // jobs are served at the same port. Throws CommError where none of the ports is free.
  explicit Store(RendezvousOptions options);

  void put(const std::string& key, const std::string& value);
  // Waits until the key is there. Both throw CommError when the timeout has passed.
  std::string get(const std::string& key);
  // The address of this host as rank 0 sees it; empty before the first put or get.
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
