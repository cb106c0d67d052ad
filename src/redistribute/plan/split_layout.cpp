// Compares layouts by their split orders if these suffice, else by each rank's part.
#include "redistribute/plan/split_layout.h"

#include <algorithm>
#include <bit>

#include "internal/contiguous_ranges.h"

namespace dtensor {
namespace {

// The number of ranks whose parts are examined. Larger meshes are sampled evenly, so that costs become estimates.
constexpr std::int64_t kMaxSampledRanks = 64;

std::size_t common_prefix(const SplitOrder& a, const SplitOrder& b) {
  const std::size_t n = std::min(a.size(), b.size());
  std::size_t i = 0;
  while (i < n && a[i] == b[i]) ++i;
  return i;
}

AxisMask axes_of(const SplitOrder& order, std::size_t first = 0) {
  AxisMask axes = 0;
  for (std::size_t i = first; i < order.size(); ++i) axes |= AxisMask{1} << order[i].axis;
  return axes;
}

AxisMask axes_of(const SplitLayout& layout) {
  AxisMask axes = 0;
  for (const SplitOrder& order : layout.orders) axes |= axes_of(order);
  return axes;
}

bool has_strided_pieces(const SplitLayout& layout) {
  return std::any_of(layout.orders.begin(), layout.orders.end(), [](const SplitOrder& order) {
    return std::any_of(order.begin(), order.end(), [](const SplitStep& step) { return !step.is_contiguous_range(); });
  });
}

// Calls body with each coordinate along `axes` (0 elsewhere), or with a sample; returns whether it visited all.
template <class Body>
bool for_each_coordinate(AxisMask axes, const TensorGeometry& geometry, Body body) {
  const std::int64_t count = geometry.group_size(axes);
  const std::int64_t visited = std::min(count, kMaxSampledRanks);
  for (std::int64_t i = 0; i < visited; ++i) {
    const std::int64_t index = visited == 1 ? 0 : i * (count - 1) / (visited - 1);
    body(coordinate_along(geometry.mesh, axes, index, Coordinate(geometry.mesh.size(), 0)));
  }
  return visited == count;
}

Segments part(const SplitLayout& layout, std::size_t dim, const TensorGeometry& geometry, const Coordinate& at) {
  return shard_segments(geometry.sizes[dim], layout.orders[dim], geometry.mesh, at);
}

std::int64_t elements_missing(const SplitLayout& from, const SplitLayout& to, const TensorGeometry& geometry,
                              const Coordinate& at) {
  std::int64_t wanted = 1, held = 1;
  for (std::size_t dim = 0; dim < from.orders.size(); ++dim) {
    if (from.orders[dim].empty() && to.orders[dim].empty()) {
      wanted *= geometry.sizes[dim];
      held *= geometry.sizes[dim];
    } else {
      const Segments want = part(to, dim, geometry, at);
      wanted *= total_length(want);
      held *= intersection_size(want, part(from, dim, geometry, at));
    }
  }
  return wanted - held;
}

// Whether the rank at `at` finds all that it needs along one dimension on ranks that differ from it in `axes` only.
bool finds_all(const SplitLayout& from, const SplitLayout& to, std::size_t dim, AxisMask axes,
               const TensorGeometry& geometry, const Coordinate& at) {
  const Segments want = part(to, dim, geometry, at);
  const AxisMask along = axes & axes_of(from.orders[dim]);
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < geometry.group_size(along); ++i) {
    found += intersection_size(want, part(from, dim, geometry, coordinate_along(geometry.mesh, along, i, at)));
  }
  return found == total_length(want);
}

bool axes_suffice(const SplitLayout& from, const SplitLayout& to, AxisMask axes, const TensorGeometry& geometry) {
  bool all = true;
  for_each_coordinate(axes_of(from) | axes_of(to), geometry, [&](const Coordinate& at) {
    for (std::size_t dim = 0; all && dim < from.orders.size(); ++dim)
      all = finds_all(from, to, dim, axes, geometry, at);
  });
  return all;
}

}  // namespace

std::int64_t TensorGeometry::group_size(AxisMask axes) const { return ranks_along(mesh, axes); }

std::int64_t TensorGeometry::numel() const {
  std::int64_t n = 1;
  for (const std::int64_t size : sizes) n *= size;
  return n;
}

SplitLayout::SplitLayout(const Placements& placements, const TensorGeometry& geometry) : mesh(geometry.mesh) {
  for (std::size_t dim = 0; dim < geometry.sizes.size(); ++dim) {
    orders.push_back(split_order(static_cast<std::int64_t>(dim), placements, mesh));
  }
}

bool refines(const SplitLayout& fine, const SplitLayout& coarse) {
  for (std::size_t dim = 0; dim < fine.orders.size(); ++dim) {
    if (common_prefix(fine.orders[dim], coarse.orders[dim]) != coarse.orders[dim].size()) return false;
  }
  return true;
}

// Ranks that differ in the axes after the common prefix of the two orders have what a rank lacks. With strided pieces
// that may be more axes than needed, so the function tries fewer.
AxisMask exchange_axes(const SplitLayout& from, const SplitLayout& to, const TensorGeometry& geometry) {
  AxisMask axes = 0;
  for (std::size_t dim = 0; dim < from.orders.size(); ++dim) {
    axes |= axes_of(from.orders[dim], common_prefix(from.orders[dim], to.orders[dim]));
  }
  if (!has_strided_pieces(from) && !has_strided_pieces(to)) return axes;
  if (geometry.group_size(axes_of(from) | axes_of(to)) > kMaxSampledRanks) return axes;
  AxisMask best = axes;
  for (AxisMask fewer = axes; fewer != 0; fewer = (fewer - 1) & axes) {
    if (std::popcount(fewer) < std::popcount(best) && axes_suffice(from, to, fewer, geometry)) best = fewer;
  }
  return best;
}

Traffic exchange_traffic(const SplitLayout& from, const SplitLayout& to, const TensorGeometry& geometry) {
  Traffic traffic;
  traffic.exact = for_each_coordinate(axes_of(from) | axes_of(to), geometry, [&](const Coordinate& at) {
    traffic.received = std::max(traffic.received, elements_missing(from, to, geometry, at));
  });
  return traffic;
}

std::int64_t largest_part(const SplitLayout& layout, const TensorGeometry& geometry) {
  std::int64_t largest = 1;
  // Chunks have descending sizes, so the first rank's part is the largest. For a ragged split it is the rank with most
  // elements; for a zigzag split, whose parts differ by at most one element, any rank.
  Coordinate at(geometry.mesh.size(), 0);
  for (std::size_t dim = 0; dim < layout.orders.size(); ++dim) {
    const SplitOrder& order = layout.orders[dim];
    const at::IntArrayRef ragged = order.empty() ? at::IntArrayRef() : order[0].ragged;
    if (!ragged.empty()) at[order[0].axis] = std::max_element(ragged.begin(), ragged.end()) - ragged.begin();
    largest *= total_length(part(layout, dim, geometry, at));
  }
  return largest;
}

Segments intersection(const Segments& a, const Segments& b) {
  Segments out;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const std::int64_t begin = std::max(a[i].offset, b[j].offset);
    const std::int64_t a_end = a[i].offset + a[i].length, b_end = b[j].offset + b[j].length;
    if (begin < std::min(a_end, b_end)) out.push_back({begin, std::min(a_end, b_end) - begin});
    a_end <= b_end ? ++i : ++j;
  }
  return out;
}

std::int64_t intersection_size(const Segments& a, const Segments& b) { return total_length(intersection(a, b)); }

}  // namespace dtensor
