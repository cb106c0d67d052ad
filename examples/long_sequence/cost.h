// Peak memory and time of transformer blocks whose sequence is split over ranks.
#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>

namespace long_sequence {

struct Cost {
  double bytes = 0;      // Peak beyond parameters and inputs, on the rank with the most.
  double seconds = 0;    // Wall time of the slowest rank.
  double processor = 0;  // CPU seconds of the busiest rank's thread: the time if each rank has its own core.
};

// Costs of forward and backward through two blocks on `ranks` thread ranks, with filled caches.
Cost cost_of(int ranks, std::int64_t tokens, c10::DeviceType device = c10::kCPU);

}  // namespace long_sequence
