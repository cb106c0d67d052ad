// Computes the region of a coordinate, dimension by dimension.
#include "random/global_indices.h"

#include <c10/util/Exception.h>

#include "dtensor/random.h"
#include "internal/contiguous_ranges.h"
#include "internal/scoped_value.h"
#include "placement/shard_map.h"

namespace dtensor {

at::DimVector GlobalRegion::local_sizes() const {
  at::DimVector local;
  for (const auto& s : segments) local.push_back(total_length(s));
  return local;
}

GlobalRegion region_of(at::IntArrayRef sizes, const Placements& placements, at::IntArrayRef mesh_shape,
                       at::IntArrayRef coordinate) {
  for (const auto& p : placements) {
    TORCH_CHECK(!p.is_partial(), "a tensor with placements ", to_string(placements),
                " cannot be filled with random numbers: its parts are summands, not values; redistribute it first");
  }
  GlobalRegion region{at::DimVector(sizes), {}};
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    region.segments.push_back(
        shard_segments(sizes[d], static_cast<std::int64_t>(d), placements, mesh_shape, coordinate));
  }
  return region;
}

namespace {

void place_in_batch(GlobalRegion& region, const MicrobatchRandomScope::Range& rows) {
  if (region.sizes.empty() || rows.count == 0 || region.sizes[0] == 0 || region.sizes[0] % rows.count != 0) return;
  const std::int64_t flattened = region.sizes[0] / rows.count;
  region.sizes[0] = rows.total * flattened;
  for (Segment& segment : region.segments[0]) segment.offset += rows.first * flattened;
}

}  // namespace

GlobalRegion region_of(const TensorSpec& spec) {
  TORCH_CHECK(spec.mesh->is_member, "rank ", spec.mesh->world_rank, " is outside the mesh of ", spec.str());
  auto region = region_of(spec.sizes, spec.placements, spec.mesh->layout.shape, spec.mesh->coordinate);
  if (const auto* rows = ScopedValue<MicrobatchRandomScope::Range>::current()) place_in_batch(region, *rows);
  return region;
}

}  // namespace dtensor
