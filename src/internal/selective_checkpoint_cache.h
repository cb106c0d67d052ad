// Results of chosen operators are recorded in one run of a function and given out again in another run of it, in order:
// what selective activation checkpointing is made of.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "internal/scoped_value.h"

namespace dtensor {

// Results of some operators, kept in forward for when they are computed again.
class DTENSOR_API SelectiveCheckpointCache {
 public:
  SelectiveCheckpointCache() = default;
  // Operators by name without overload: "aten::mm". Only calls on DTensors count.
  explicit SelectiveCheckpointCache(std::set<std::string> operators);

  struct State;
  // While it lives, results are kept.
  struct Recording {
    // For the library itself.
    std::shared_ptr<State> state;
  };
  // While it lives, they are given back in their order.
  struct Replaying {
    // For the library itself.
    std::shared_ptr<State> state;
  };

  // While it lives, this thread's results of the operators are kept, instead of those of an earlier run.
  class DTENSOR_API Record {
   public:
    explicit Record(const SelectiveCheckpointCache& results);

   private:
    ScopedValue<Recording> scope_;
  };
  // While it lives, they are given out instead of being computed. An error if the run differs from the recorded one, or
  // if a result was changed in place since. Whether it made all the calls of that is asked by check_all_replayed().
  class DTENSOR_API Replay {
   public:
    explicit Replay(const SelectiveCheckpointCache& results);

   private:
    ScopedValue<Replaying> scope_;
    ScopedValue<Recording> no_record_;
  };

  // At the end of a run under Replay: an error if it made fewer of the calls than were recorded. It may have left out
  // one before others, and been given the results of those.
  void check_all_replayed() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace dtensor
