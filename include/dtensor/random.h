// Random numbers that do not depend on the layout. Each value is a function of the seed, the number of the random
// operator and the element's global index (Philox4x32-10, Salmon et al., SC'11). So every mesh and placement gives the
// same global tensor. All meshes of a world communicator share one counter.
#pragma once

#include <cstdint>
#include <memory>

#include "dtensor/export.h"
#include "dtensor/mesh.h"

namespace dtensor {

// State of the random number generator of a world.
struct RngState {
  // The argument of manual_seed().
  std::uint64_t seed = 0;
  std::uint64_t counter = 0;  // Number of random operators that have run.
  friend bool operator==(const RngState&, const RngState&) = default;
};

// Seeds all random operators on the meshes of this mesh's world and sets the counter to 0. Every rank must call it.
DTENSOR_API void manual_seed(const DeviceMesh& mesh, std::uint64_t seed);
DTENSOR_API RngState get_rng_state(const DeviceMesh& mesh);
DTENSOR_API void set_rng_state(const DeviceMesh& mesh, RngState state);

// During its lifetime, random tensors of `count` rows are rows [first, first + count) of a batch of `total` rows. So a
// microbatch gets the values that its rows would get in the full batch. This also applies to a multiple of `count`
// rows, where dimension 0 was flattened with the dimensions behind it. Other sizes of dimension 0 are not affected.
class DTENSOR_API MicrobatchRandomScope {
 public:
  // A range of rows of a batch.
  struct Range {
    // Counted in rows of dimension 0.
    std::int64_t first = 0, count = 0, total = 0;
  };
  explicit MicrobatchRandomScope(Range range);

  // The innermost range of this thread. Outside any guard it is empty and has no effect.
  static Range current();

 private:
  std::shared_ptr<const void> scope_;
};

}  // namespace dtensor
