// Increments MoeCounters if a MoeCountersScope is open.
#pragma once

#include "dtensor/moe/layer.h"
#include "internal/scoped_value.h"

namespace dtensor::moe {

inline void count(std::int64_t MoeCounters::*what, std::int64_t by = 1) {
  if (auto* const* counters = ScopedValue<MoeCounters*>::current()) (*counters)->*what += by;
}

}  // namespace dtensor::moe
