// Random numbers that do not depend on the layout: each value is a function of the seed, the number of the random
// operator and the element's global index (Philox4x32-10, Salmon et al., SC'11), so every mesh and placement gives the
// same global tensor. One counter per world communicator, shared by all its meshes.
#pragma once

#include <cstdint>

#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/scoped_value.h"

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

// While it lives, random tensors of `count` rows, or of a multiple where rows were flattened with dimensions behind
// them, count as rows [first, first + count) of a batch of `total`: a microbatch gets the values that its rows would
// get in the whole batch. Other sizes along dim 0 are as ever.
class DTENSOR_API BatchRows {
 public:
  // Rows of a batch.
  struct Range {
    // In rows of dim 0.
    std::int64_t first = 0, count = 0, total = 0;
  };
  explicit BatchRows(Range range) : scope_(range) {}

 private:
  ScopedValue<Range> scope_;
};

}  // namespace dtensor
