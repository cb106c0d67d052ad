// Regions of layouts, and their difference.
#pragma once

#include "internal/region.h"
#include "redistribute/plan/split_layout.h"

namespace dtensor {

Region region_of(const SplitLayout& layout, const TensorGeometry& geometry, at::IntArrayRef coordinate);
// The part of `wanted` outside `held`, as disjoint regions.
std::vector<Region> region_difference(const Region& wanted, const Region& held);
// Splits the region into `count` parts along its longest dimension, with lengths that differ by at most one; some may
// be empty.
std::vector<Region> split_region(const Region& region, std::int64_t count);

}  // namespace dtensor
