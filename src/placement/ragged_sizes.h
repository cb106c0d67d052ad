// The lists of sizes that ragged shards name: equal lists have equal numbers, so that a Placement stays a small value
// that is compared without looking at them.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>

namespace dtensor {

// At least 1. Throws for an empty list, a negative size, and when a process makes more than a million lists.
std::int32_t intern_ragged_sizes(c10::IntArrayRef sizes);
// Stays valid: lists are never dropped.
c10::IntArrayRef ragged_sizes_by_id(std::int32_t number);

}  // namespace dtensor
