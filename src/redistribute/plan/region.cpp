// Sets of ranges, and their products over the dimensions. Also defines internal/region.h.
#include "redistribute/plan/region.h"

#include <algorithm>

#include "internal/contiguous_ranges.h"

namespace dtensor {
namespace {

// The ranges of `a` outside those of `b`, both in ascending order.
Segments without(const Segments& a, const Segments& b) {
  Segments out;
  for (const Segment& s : a) {
    std::int64_t begin = s.offset;
    const std::int64_t end = s.offset + s.length;
    for (const Segment& t : b) {
      if (t.length == 0 || t.offset + t.length <= begin || t.offset >= end) continue;
      if (t.offset > begin) out.push_back({begin, t.offset - begin});
      begin = t.offset + t.length;
    }
    if (begin < end) out.push_back({begin, end - begin});
  }
  return out;
}

// Elements [begin, end) of the concatenation of the ranges.
Segments between(const Segments& segments, std::int64_t begin, std::int64_t end) {
  Segments out;
  for (const Segment& s : segments) {
    const std::int64_t from = std::clamp(begin, std::int64_t{0}, s.length),
                       to = std::clamp(end, std::int64_t{0}, s.length);
    if (from < to) out.push_back({s.offset + from, to - from});
    begin -= s.length;
    end -= s.length;
  }
  return out;
}

}  // namespace

at::DimVector Region::sizes() const {
  at::DimVector sizes;
  for (const Segments& segments : dims) sizes.push_back(total_length(segments));
  return sizes;
}

std::int64_t Region::numel() const {
  std::int64_t n = 1;
  for (const Segments& segments : dims) n *= total_length(segments);
  return n;
}

Region region_of(const SplitLayout& layout, const TensorGeometry& geometry, at::IntArrayRef coordinate) {
  Region region;
  for (std::size_t dim = 0; dim < layout.orders.size(); ++dim) {
    region.dims.push_back(shard_segments(geometry.sizes[dim], layout.orders[dim], geometry.mesh, coordinate));
  }
  return region;
}

Region intersection(const Region& a, const Region& b) {
  Region region;
  for (std::size_t dim = 0; dim < a.dims.size(); ++dim) region.dims.push_back(intersection(a.dims[dim], b.dims[dim]));
  return region;
}

Region shard_region(c10::IntArrayRef sizes, const Placements& placements, c10::IntArrayRef mesh_shape,
                    c10::IntArrayRef coordinate) {
  Region region;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    region.dims.push_back(shard_segments(sizes[d], static_cast<std::int64_t>(d), placements, mesh_shape, coordinate));
  }
  return region;
}

std::vector<Transfer> overlaps(const Region& own, const std::vector<Region>& of_members) {
  std::vector<Transfer> transfers;
  for (const Region& other : of_members) transfers.push_back({std::ssize(transfers), intersection(own, other)});
  return transfers;
}

std::vector<Region> region_difference(const Region& wanted, const Region& held) {
  std::vector<Region> parts;
  Region rest = wanted;  // the part that intersects `held` in all earlier dimensions
  for (std::size_t dim = 0; dim < wanted.dims.size(); ++dim) {
    Region part = rest;
    part.dims[dim] = without(wanted.dims[dim], held.dims[dim]);
    if (part.numel() > 0) parts.push_back(std::move(part));
    rest.dims[dim] = intersection(wanted.dims[dim], held.dims[dim]);
  }
  return parts;
}

std::vector<Region> split_region(const Region& region, std::int64_t count) {
  const auto sizes = region.sizes();
  if (sizes.empty() || count < 2) return {region};
  const auto dim = static_cast<std::size_t>(std::max_element(sizes.begin(), sizes.end()) - sizes.begin());
  std::vector<Region> parts;
  for (std::int64_t k = 0; k < count; ++k) {
    parts.push_back(region);
    parts.back().dims[dim] = between(region.dims[dim], sizes[dim] * k / count, sizes[dim] * (k + 1) / count);
  }
  return parts;
}

}  // namespace dtensor
