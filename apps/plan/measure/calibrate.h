// Measures this machine: operators over sizes, collectives of thread ranks over sizes, the cost of an operator call.
#pragma once

#include "dtensor/estimate.h"

namespace plan {

// With `ranks` thread ranks, each of which computes at the same time, as in a training step.
dtensor::HardwareModel calibrate(int ranks);

}  // namespace plan
