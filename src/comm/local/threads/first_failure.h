// Which of several ranks failed first.
#pragma once

#include <exception>
#include <mutex>

#include "comm/local/threads/run_local.h"

namespace dtensor::local {

// The first failure; later ones are its consequences. A PeerError may come before the original exception on another
// rank, which then replaces it.
class FirstFailure {
 public:
  // Call it in an exception handler of `rank`, on any thread.
  void record_current(int rank);
  RunResult result() const { return result_; }

 private:
  std::mutex mutex_;
  RunResult result_;
  bool reported_ = false;  // result_ is a PeerError, so its origin is another rank
};

// Throws the error with its rank. Preserves the type where the message can be changed: CommError, and c10::Error with
// its subclasses.
[[noreturn]] void rethrow(const RunResult& failed);

}  // namespace dtensor::local
