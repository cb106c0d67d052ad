// Layouts as the planner compares them: for each tensor dimension, the order in which mesh axes split it. Two layouts
// determine whether one refines the other, which ranks must communicate, and how much the busiest rank receives.
#pragma once

#include "placement/shard_map.h"
#include "redistribute/plan/plan.h"

namespace dtensor {

// The tensor and mesh of a plan.
struct TensorGeometry {
  at::IntArrayRef sizes;
  at::IntArrayRef mesh;
  std::int64_t itemsize;

  std::int64_t group_size(AxisMask axes) const;
  std::int64_t numel() const;
};

struct SplitLayout {
  SplitLayout(const Placements& placements, const TensorGeometry& geometry);
  at::IntArrayRef mesh;
  c10::SmallVector<SplitOrder, 4> orders;  // for each tensor dimension
};

// Whether `fine` only splits the parts of `coarse` further: every rank's part in `fine` is within its part in
// `coarse`.
bool refines(const SplitLayout& fine, const SplitLayout& coarse);

// The axes along which a rank finds what it lacks when the layout changes.
AxisMask exchange_axes(const SplitLayout& from, const SplitLayout& to, const TensorGeometry& geometry);

struct Traffic {
  std::int64_t received = 0;  // elements that the busiest rank lacks
  bool exact = true;          // false: computed from a sample of a large mesh's ranks
};
Traffic exchange_traffic(const SplitLayout& from, const SplitLayout& to, const TensorGeometry& geometry);

// The number of elements of the largest local part.
std::int64_t largest_part(const SplitLayout& layout, const TensorGeometry& geometry);

// The elements along one dimension that are in both; and their number.
Segments intersection(const Segments& a, const Segments& b);
std::int64_t intersection_size(const Segments& a, const Segments& b);

}  // namespace dtensor
