// Parts of a global tensor as products of ranges: what a rank holds, what two parts have in common, what one lacks.
#pragma once

#include "redistribute/plan/split_layout.h"

namespace dtensor {

// Global ranges by tensor dimension; the part is their product.
struct Region {
  c10::SmallVector<Segments, 4> dims;

  at::DimVector sizes() const;
  std::int64_t numel() const;
};

Region region_of(const SplitLayout& layout, const TensorGeometry& geometry, at::IntArrayRef coordinate);
Region intersection(const Region& a, const Region& b);
// What `wanted` has and `held` lacks: parts that have nothing in common.
std::vector<Region> region_difference(const Region& wanted, const Region& held);
// The region in `count` parts along its longest dimension, which differ in length by one at most; some may be empty.
std::vector<Region> split_region(const Region& region, std::int64_t count);

}  // namespace dtensor
