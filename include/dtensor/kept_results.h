// Results of chosen operators are recorded in one run of a function and given out again in another run of it, in order:
// what selective activation checkpointing is made of.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "dtensor/export.h"

namespace dtensor {

class DTENSOR_API KeptResults {
 public:
  KeptResults() = default;
  // Operators by name without overload: "aten::mm". Only calls on DTensors count.
  explicit KeptResults(std::set<std::string> operators);

  // While it lives, this thread's results of the operators are kept.
  class DTENSOR_API Record {
   public:
    explicit Record(const KeptResults& results);
    ~Record();
    Record(const Record&) = delete;
    Record& operator=(const Record&) = delete;

   private:
    void* previous_;
  };
  // While it lives, they are given out instead of being computed. An error if the run differs from the recorded one, or
  // if a result was changed in place since.
  class DTENSOR_API Replay {
   public:
    explicit Replay(const KeptResults& results);
    ~Replay();
    Replay(const Replay&) = delete;
    Replay& operator=(const Replay&) = delete;

   private:
    void *previous_, *previous_record_;
  };

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace dtensor
