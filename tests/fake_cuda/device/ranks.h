// Runs ranks as threads, each with its own simulated device, on one seeded schedule.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dtensor/comm.h"

namespace dtensor::test::fake_cuda {

struct Schedule {
  std::uint64_t seed = 1;
  std::chrono::milliseconds patience{2000};  // without progress, until ranks that all wait are a deadlock
  // As NCCL, block the host in the first call that uses two ranks, until both have called.
  bool connects_in_calls = true;
  // NCCL operations that a device runs at a time. Each takes processors of a device until all ranks have started it.
  int concurrent = 8;
};

// Runs `body(rank)` on `ranks` threads. Returns the errors: exceptions, deadlocks, mismatches, races and memory that is
// freed too early.
std::vector<std::string> errors_of_devices(int ranks, const Schedule& schedule, const std::function<void(int)>& body);

// Runs `body` on thread ranks with communicators of the NCCL backend. Returns the errors as above.
std::vector<std::string> errors_of_ranks(int ranks, const Schedule& schedule,
                                         const std::function<void(const Communicator&)>& body);

}  // namespace dtensor::test::fake_cuda
