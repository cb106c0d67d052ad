// Whether waits may time out.
#pragma once

#include <chrono>

#include "dtensor/export.h"

namespace dtensor {

bool timeouts_suspended();

// A timeout that clocks can count with: those who wait for ever ask for the longest time that there is, which would
// wrap round when it is added to now.
DTENSOR_API std::chrono::milliseconds clamp_timeout(std::chrono::milliseconds timeout);

}  // namespace dtensor
