// Selective activation checkpointing: records results of chosen operators in one run of a function and returns them, in
// order, when the function runs again.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "internal/scoped_value.h"

namespace dtensor {

// Results of chosen operators, kept from forward for recomputation.
class DTENSOR_API SelectiveCheckpointCache {
 public:
  SelectiveCheckpointCache() = default;
  // Operators by name without overload: "aten::mm". Only calls on DTensors are recorded.
  explicit SelectiveCheckpointCache(std::set<std::string> operators);

  struct State;
  // Scoped value while results are recorded.
  struct Recording {
    // For the library itself.
    std::shared_ptr<State> state;
  };
  // Scoped value while results are replayed.
  struct Replaying {
    // For the library itself.
    std::shared_ptr<State> state;
  };

  // During its lifetime, records this thread's results of the operators and discards those of an earlier run.
  class DTENSOR_API Record {
   public:
    explicit Record(const SelectiveCheckpointCache& results);

   private:
    ScopedValue<Recording> scope_;
  };
  // During its lifetime, returns the recorded results instead of computing them. Throws if the run differs from the
  // recorded one, or if a result was changed in place. check_all_replayed() checks that no recorded call is missing.
  class DTENSOR_API Replay {
   public:
    explicit Replay(const SelectiveCheckpointCache& results);

   private:
    ScopedValue<Replaying> scope_;
    ScopedValue<Recording> no_record_;
  };

  // Call it at the end of a run under Replay. Throws if the run made fewer calls than were recorded. In that case it
  // may have received results of the wrong calls.
  void check_all_replayed() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace dtensor
