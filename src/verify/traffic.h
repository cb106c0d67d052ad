// What local kernels send besides the redistributions that plans tell of.
#pragma once

#include "verify/oracle.h"

namespace dtensor::verify {

// Bytes that the busiest of `ranks` receives while the operator runs on operands that lie in these placements already
// (empty: plain): its local kernel's own collectives, counted by the event stream of thread ranks. Where it raises, 0
// and a line to stderr.
double kernel_traffic(const Sample& sample, std::int64_t ranks, const std::vector<Placements>& inputs);

}  // namespace dtensor::verify
