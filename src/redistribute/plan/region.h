// Parts of a global tensor as products of ranges, with intersection and difference.
#pragma once

#include "redistribute/plan/split_layout.h"

namespace dtensor {

// Global ranges for each tensor dimension; the region is their product.
struct Region {
  c10::SmallVector<Segments, 4> dims;

  at::DimVector sizes() const;
  std::int64_t numel() const;
};

Region region_of(const SplitLayout& layout, const TensorGeometry& geometry, at::IntArrayRef coordinate);
Region intersection(const Region& a, const Region& b);
// The part of `wanted` outside `held`, as disjoint regions.
std::vector<Region> region_difference(const Region& wanted, const Region& held);
// Splits the region into `count` parts along its longest dimension, with lengths that differ by at most one; some may
// be empty.
std::vector<Region> split_region(const Region& region, std::int64_t count);

}  // namespace dtensor
