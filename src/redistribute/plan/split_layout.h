// Placements as the planner sees them: for each tensor dimension the order in which mesh axes split it, and what
// follows from two such layouts: whether one refines the other, which ranks must talk, and how much the busiest one
// receives.
#pragma once

#include "placement/shard_map.h"
#include "redistribute/plan/plan.h"

namespace dtensor {

// The tensor and mesh that a plan is about.
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
  c10::SmallVector<SplitOrder, 4> orders;  // by tensor dimension
};

// Whether `fine` only splits further what `coarse` holds: every rank's part of it lies in its part of `coarse`.
bool refines(const SplitLayout& fine, const SplitLayout& coarse);

// The axes along which a rank finds what it lacks when the layout changes.
AxisMask exchange_axes(const SplitLayout& from, const SplitLayout& to, const TensorGeometry& geometry);

struct Traffic {
  std::int64_t received = 0;  // elements that the busiest rank lacks
  bool exact = true;          // false: only some ranks of a big mesh were looked at
};
Traffic exchange_traffic(const SplitLayout& from, const SplitLayout& to, const TensorGeometry& geometry);

// Elements of the largest local part.
std::int64_t largest_part(const SplitLayout& layout, const TensorGeometry& geometry);

// Elements along one dimension that both hold; and how many.
Segments intersection(const Segments& a, const Segments& b);
std::int64_t intersection_size(const Segments& a, const Segments& b);

}  // namespace dtensor
