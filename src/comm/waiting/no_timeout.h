// Whether waits may time out.
#pragma once

#include <chrono>

#include "dtensor/export.h"

namespace dtensor {

bool timeouts_suspended();

// Limits a timeout to what clock arithmetic supports: adding duration::max() to the current time would overflow.
DTENSOR_API std::chrono::milliseconds clamp_timeout(std::chrono::milliseconds timeout);

}  // namespace dtensor
