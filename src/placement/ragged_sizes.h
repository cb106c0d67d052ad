// Interned size lists of ragged shards. Equal lists have equal ids, so that a Placement is a small value that is
// compared without reading the lists.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>

namespace dtensor {

// Returns an id of at least 1. Throws for an empty list, a negative size, and beyond a million lists per process.
std::int32_t intern_ragged_sizes(c10::IntArrayRef sizes);
// The array stays valid: lists are never removed.
c10::IntArrayRef ragged_sizes_by_id(std::int32_t number);

}  // namespace dtensor
