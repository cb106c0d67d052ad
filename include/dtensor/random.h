// Random numbers that do not depend on the layout: each value is a function of the seed, the number of the random
// operator and the element's global index (Philox4x32-10, Salmon et al., SC'11), so every mesh and placement gives the
// same global tensor. One counter per world communicator, shared by all its meshes.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/mesh.h"

namespace dtensor {

// Of a world's random numbers.
struct RngState {
  // What was given to manual_seed().
  std::uint64_t seed = 0;
  std::uint64_t counter = 0;  // random operators run so far
  friend bool operator==(const RngState&, const RngState&) = default;
};

// Seeds every random operator on the meshes of this mesh's world and sets the counter to 0. Call it on every rank.
DTENSOR_API void manual_seed(const DeviceMesh& mesh, std::uint64_t seed);
DTENSOR_API RngState get_rng_state(const DeviceMesh& mesh);
DTENSOR_API void set_rng_state(const DeviceMesh& mesh, RngState state);

// Which worlds a function drew random numbers of, and where each stood before: with that it draws the same ones again.
class DTENSOR_API RandomDraws {
 public:
  // While it lives, this thread's draws are noted.
  class DTENSOR_API Record {
   public:
    explicit Record(RandomDraws& draws);

   private:
    std::shared_ptr<const void> scope_;
  };
  // While it lives, those worlds stand where they stood before the first draw; then where they stood until now.
  class DTENSOR_API Replay {
   public:
    explicit Replay(const RandomDraws& draws);
    ~Replay();
    Replay(const Replay&) = delete;
    Replay& operator=(const Replay&) = delete;

   private:
    std::vector<std::pair<DeviceMesh, RngState>> now_;
  };

  void note(const DeviceMesh& mesh, RngState before);  // a draw; the first of each world counts

 private:
  std::vector<std::pair<DeviceMesh, RngState>> before_;  // a mesh of each world
};

// While it lives, random tensors of `count` rows, or of a multiple where rows were flattened with dimensions behind
// them, count as rows [first, first + count) of a batch of `total`: a microbatch gets the values that its rows would
// get in the whole batch. Other sizes along dim 0 are as ever.
class DTENSOR_API MicrobatchRandomGuard {
 public:
  // Rows of a batch.
  struct Range {
    // In rows of dim 0.
    std::int64_t first = 0, count = 0, total = 0;
  };
  explicit MicrobatchRandomGuard(Range range);

  // The innermost of this thread; of no rows outside any, which changes nothing.
  static Range current();

 private:
  std::shared_ptr<const void> scope_;
};

}  // namespace dtensor
