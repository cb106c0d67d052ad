// Finds out whether a backward pass runs inside another one, which autograd does not tell: a call with local semantics
// that backward has reached belongs to its pass.
#pragma once

#include <algorithm>
#include <mutex>
#include <vector>

#include "parallel/fsdp/call/local_module_call.h"
#include "scope/thread_state.h"

namespace dtensor::fsdp {

// The calls of this process that backward has reached, of all ranks. A lock, because autograd has threads for devices.
class CallsInBackward {
 public:
  static void add(const LocalModuleCall* call) {
    const std::lock_guard lock(mutex);
    calls.push_back({thread_state().rank, call});
  }
  static void remove(const LocalModuleCall* call) {
    const std::lock_guard lock(mutex);
    std::erase_if(calls, [&](const Entry& entry) { return entry.call == call; });
  }
  static bool any_of_another_pass(int pass) {
    const std::lock_guard lock(mutex);
    return std::any_of(calls.begin(), calls.end(), [&](const Entry& entry) {
      return entry.rank == thread_state().rank && entry.call->pass() != pass;
    });
  }

 private:
  struct Entry {
    const RankRecord* rank;
    const LocalModuleCall* call;
  };
  inline static std::mutex mutex;
  inline static std::vector<Entry> calls;
};

}  // namespace dtensor::fsdp
