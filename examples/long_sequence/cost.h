// Peak memory and time of transformer blocks whose sequence is split over ranks.
#pragma once

#include <cstdint>

namespace long_sequence {

struct Cost {
  double bytes = 0;    // beside parameters and inputs, at the highest moment, of the rank with the most
  double seconds = 0;  // of the slowest rank, on the clock
  double processor =
      0;  // of the busiest rank's thread, in seconds: what it costs where each rank has a core of its own
};

// Of a forward and backward pass through two blocks on that many thread ranks, with caches filled.
Cost cost_of(int ranks, std::int64_t tokens);

}  // namespace long_sequence
