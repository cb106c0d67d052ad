// Random numbers of a function that runs twice (activation checkpointing).
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/random.h"

namespace dtensor {

// The worlds from which a function drew random numbers, each with its state before the first draw. Replaying that state
// draws the same numbers again.
class DTENSOR_API RandomDraws {
 public:
  // Records the draws of this thread during its lifetime.
  class DTENSOR_API Record {
   public:
    explicit Record(RandomDraws& draws);

   private:
    std::shared_ptr<const void> scope_;
  };
  // Sets the recorded worlds to their state before the first draw. The destructor restores the state of the
  // construction.
  class DTENSOR_API Replay {
   public:
    explicit Replay(const RandomDraws& draws);
    ~Replay();
    Replay(const Replay&) = delete;
    Replay& operator=(const Replay&) = delete;

   private:
    std::vector<std::pair<DeviceMesh, RngState>> now_;
  };

  // Records a draw; only the first one of each world is kept.
  void note(const DeviceMesh& mesh, RngState before);

 private:
  std::vector<std::pair<DeviceMesh, RngState>> before_;  // One mesh of each world.
};

}  // namespace dtensor
