// Regions and their runs. Only the dimensions before the last sharded one are walked; everything behind it is one run.
#include "random/region.h"

#include <c10/util/Exception.h>

#include "dtensor/random.h"

namespace dtensor {
namespace {

std::int64_t total(const Segments& segments) {
  std::int64_t n = 0;
  for (const auto& s : segments) n += s.length;
  return n;
}

std::vector<std::int64_t> global_offsets(const Segments& segments, std::int64_t stride) {
  std::vector<std::int64_t> offsets;
  offsets.reserve(total(segments));
  for (const auto& s : segments) {
    for (std::int64_t i = 0; i < s.length; ++i) offsets.push_back((s.offset + i) * stride);
  }
  return offsets;
}

}  // namespace

at::DimVector GlobalRegion::local_sizes() const {
  at::DimVector local;
  for (const auto& s : segments) local.push_back(total(s));
  return local;
}

GlobalRegion whole_region(at::IntArrayRef sizes) {
  GlobalRegion region{at::DimVector(sizes), {}};
  for (const auto n : sizes) {
    region.segments.push_back({Segment{0, n}});
  }
  return region;
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

void place_in_batch(GlobalRegion& region, const BatchRows::Range& rows) {
  if (region.sizes.empty() || rows.count == 0 || region.sizes[0] == 0 || region.sizes[0] % rows.count != 0) return;
  const std::int64_t flattened = region.sizes[0] / rows.count;
  region.sizes[0] = rows.total * flattened;
  for (Segment& segment : region.segments[0]) segment.offset += rows.first * flattened;
}

}  // namespace

GlobalRegion region_of(const TensorSpec& spec) {
  TORCH_CHECK(spec.mesh->is_member, "rank ", spec.mesh->world_rank, " is outside the mesh of ", spec.str());
  auto region = region_of(spec.sizes, spec.placements, spec.mesh->layout.shape, spec.mesh->coordinate);
  if (const auto* rows = ScopedValue<BatchRows::Range>::current()) place_in_batch(region, *rows);
  return region;
}

Runs::Runs(const GlobalRegion& region) {
  auto split = static_cast<std::int64_t>(region.sizes.size()) - 1;
  const auto is_whole = [&](std::int64_t d) {
    return region.segments[d].size() == 1 && region.segments[d][0] == Segment{0, region.sizes[d]};
  };
  while (split > 0 && is_whole(split)) inner_ *= region.sizes[split--];
  if (split >= 0) segments_ = region.segments[split];
  auto stride = inner_ * (split < 0 ? 1 : region.sizes[split]);
  offsets_.resize(std::max<std::int64_t>(split, 0));
  for (auto d = split - 1; d >= 0; --d) {
    offsets_[d] = global_offsets(region.segments[d], stride);
    outer_count_ *= static_cast<std::int64_t>(offsets_[d].size());
    stride *= region.sizes[d];
  }
  if (inner_ == 0) outer_count_ = 0;
}

void Runs::Odometer::sum() {
  base_ = 0;
  for (std::size_t d = 0; d < index_.size(); ++d) base_ += runs_.offsets_[d].empty() ? 0 : runs_.offsets_[d][index_[d]];
}

void Runs::Odometer::advance() {
  for (auto d = static_cast<std::int64_t>(index_.size()) - 1; d >= 0; --d) {
    if (++index_[d] < static_cast<std::int64_t>(runs_.offsets_[d].size())) break;
    index_[d] = 0;
  }
  sum();
}

}  // namespace dtensor
