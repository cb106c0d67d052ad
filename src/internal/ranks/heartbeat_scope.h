// Waits for ranks that read and write files.
#pragma once

#include <memory>

#include "dtensor/comm.h"

namespace dtensor {

// All ranks of a communicator open it after they have synchronized. While it lives, this process sends heartbeats to
// the other processes of the run, from a thread of its own, and its waits do not end when the timeout has passed, but
// when an awaited process has sent nothing for that time. So a slow disk of another rank is no error, a stopped process
// is one.
class HeartbeatScope {
 public:
  explicit HeartbeatScope(const Communicator& ranks);

 private:
  std::shared_ptr<void> open_;
};

}  // namespace dtensor
