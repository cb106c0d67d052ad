// Which elements a mesh coordinate stores. Everything follows from the order in which mesh axes split a dimension
// (split_order). Each step selects a range of what the earlier steps left; a StridedShard without matching axes and a
// ZigzagShard select several ranges.
#include "placement/shard_map.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

#include "internal/contiguous_ranges.h"

namespace dtensor {
namespace {

// Appends the part of `segments` in [begin, end) of their concatenation; drops empty parts and joins adjacent ones.
void append_range(const Segments& segments, std::int64_t begin, std::int64_t end, Segments& out) {
  std::int64_t position = 0;
  for (const Segment& s : segments) {
    const std::int64_t from = std::max(begin - position, std::int64_t{0});
    const std::int64_t to = std::min(end - position, s.length);
    position += s.length;
    if (from >= to) continue;
    const Segment part{s.offset + from, to - from};
    if (!out.empty() && out.back().offset + out.back().length == part.offset) {
      out.back().length += part.length;
    } else {
      out.push_back(part);
    }
  }
}

// The offset in the global dimension of an empty part that starts at `position` of the concatenation.
std::int64_t offset_at(const Segments& segments, std::int64_t position) {
  for (const Segment& s : segments) {
    if (position < s.length) return s.offset + position;
    position -= s.length;
  }
  return segments.back().offset + segments.back().length;
}

// Ragged shards come first, so they always split the full dimension.
Segment ragged_shard_at(std::int64_t n, at::IntArrayRef lengths, std::int64_t index) {
  const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  TORCH_CHECK(total == n, "RaggedShard of sizes ", lengths, ": expected their sum ", total,
              " as the size of the dimension, got ", n);
  TORCH_CHECK(index < std::ssize(lengths), "RaggedShard of sizes ", lengths, ": expected a rank below ", lengths.size(),
              ", got ", index);
  const auto* mine = lengths.begin() + index;
  return {std::accumulate(lengths.begin(), mine, std::int64_t{0}), *mine};
}

Segment shard_of(std::int64_t n, const SplitStep& step, std::int64_t parts, std::int64_t index) {
  return step.ragged.empty() ? chunk(n, parts, index) : ragged_shard_at(n, step.ragged, index);
}

// Chunk `index` of `n` elements in `parts` chunks; the first n mod parts chunks have one element more.
Segment even_chunk(std::int64_t n, std::int64_t parts, std::int64_t index) {
  const std::int64_t least = n / parts, longer = n % parts;
  return {least * index + std::min(index, longer), least + (index < longer ? 1 : 0)};
}

// The segments of the rank at `index` in one piece of `n` elements.
Segments shards_of_block(std::int64_t n, const SplitStep& step, std::int64_t parts, std::int64_t index) {
  if (!step.zigzag) return {chunk(n, parts, index)};
  return {even_chunk(n, 2 * parts, index), even_chunk(n, 2 * parts, 2 * parts - 1 - index)};
}

Segments split(const Segments& held, const SplitStep& step, std::int64_t parts, std::int64_t index) {
  const std::int64_t n = total_length(held);
  Segments out;
  // With more pieces than elements, the first pieces have one element each.
  for (std::int64_t piece = 0; piece < std::min<std::int64_t>(step.pieces, n); ++piece) {
    const Segment outer = chunk(n, step.pieces, piece);
    for (const Segment& inner : shards_of_block(outer.length, step, parts, index)) {
      append_range(held, outer.offset + inner.offset, outer.offset + inner.offset + inner.length, out);
    }
  }
  if (!out.empty()) return out;
  const std::int64_t first = shards_of_block(chunk(n, step.pieces, 0).length, step, parts, index)[0].offset;
  return {{offset_at(held, first), 0}};
}

bool starts_ragged(const SplitOrder& order) { return !order.empty() && !order[0].ragged.empty(); }

// The position in `order` after steps of axes to the right of `axis` that split into exactly `factor` parts; -1 if
// there is none. A step with pieces does not leave contiguous parts, so no later step can nest in it by its factor.
std::int64_t position_after(const SplitOrder& order, std::int64_t factor, std::int64_t axis,
                            at::IntArrayRef mesh_shape) {
  const bool ragged = starts_ragged(order);
  std::int64_t product = ragged && order[0].axis > axis ? mesh_shape[order[0].axis] : 1;
  for (std::size_t i = ragged ? 1 : 0; product <= factor; ++i) {
    if (product == factor) return static_cast<std::int64_t>(i);
    if (i == order.size() || order[i].pieces != 1) return -1;
    product *= mesh_shape[order[i].axis];
  }
  return -1;
}

}  // namespace

Segment chunk(std::int64_t n, std::int64_t parts, std::int64_t index) {
  const std::int64_t full = (n + parts - 1) / parts;
  const std::int64_t begin = std::min(n, full * index);
  return {begin, std::min(n, begin + full) - begin};
}

SplitOrder split_order(std::int64_t dim, const Placements& placements, at::IntArrayRef mesh_shape) {
  SplitOrder order;
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_ragged() || !placements[axis].is_shard(dim)) continue;
    order.push_back({static_cast<std::int32_t>(axis), 1, placements[axis].ragged_sizes().vec()});
  }
  for (auto axis = static_cast<std::int64_t>(placements.size()) - 1; axis >= 0; --axis) {
    const Placement& p = placements[axis];
    // An axis of one rank splits nothing, and must not affect how other axes nest.
    if (!p.is_shard(dim) || p.is_ragged() || mesh_shape[axis] == 1) continue;
    const std::int64_t position = p.is_zigzag() ? -1 : position_after(order, p.split_factor(), axis, mesh_shape);
    SplitStep step{static_cast<std::int32_t>(axis), position >= 0 ? 1 : static_cast<std::int32_t>(p.split_factor())};
    step.zigzag = p.is_zigzag();
    const std::int64_t first = starts_ragged(order) ? 1 : 0;
    order.insert(order.begin() + std::max(position, first), step);
  }
  return order;
}

Segments shard_segments(std::int64_t n, const SplitOrder& order, at::IntArrayRef mesh_shape,
                        at::IntArrayRef coordinate) {
  Segments held{{0, n}};
  for (const SplitStep& step : order) {
    if (step.is_contiguous_range() && held.size() == 1) {
      const Segment part = shard_of(held[0].length, step, mesh_shape[step.axis], coordinate[step.axis]);
      held[0] = {held[0].offset + part.offset, part.length};
    } else {
      held = split(held, step, mesh_shape[step.axis], coordinate[step.axis]);
    }
  }
  return held;
}

Segments shard_segments(std::int64_t n, std::int64_t dim, const Placements& placements, at::IntArrayRef mesh_shape,
                        at::IntArrayRef coordinate) {
  TORCH_CHECK(placements.size() <= mesh_shape.size() && coordinate.size() == mesh_shape.size(), "placements ",
              to_string(placements), " and coordinate ", coordinate, " do not match a mesh of shape ", mesh_shape);
  return shard_segments(n, split_order(dim, placements, mesh_shape), mesh_shape, coordinate);
}

bool lists_sizes(const Placement& shard) { return shard.is_ragged(); }

bool fits_size(const Placement& shard, std::int64_t n) {
  const auto sizes = shard.ragged_sizes();
  return sizes.empty() || std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) == n;
}

bool is_contiguous_split(const Placement& shard) { return shard.split_factor() == 1 && !shard.is_zigzag(); }

std::int64_t chunk_count(const Placement& shard, std::int64_t ranks) { return shard.is_zigzag() ? 2 * ranks : ranks; }

Placement after_split(const Placement& shard, std::int64_t parts) {
  if (parts == 1 || shard.is_zigzag()) return shard;  // a zigzag shard takes its turn from left to right
  return StridedShard(shard.dim(), shard.split_factor() * parts).as_storage(shard.is_storage());
}

Placement without_split(const Placement& shard, std::int64_t parts) {
  if (!shard.is_strided()) return shard;
  const std::int64_t factor = shard.split_factor() / parts;
  return (factor > 1 ? StridedShard(shard.dim(), factor) : Shard(shard.dim())).as_storage(shard.is_storage());
}

Segments own_segments(const MeshInfo& mesh, std::int64_t n, std::int64_t dim, const Placements& placements) {
  return shard_segments(n, dim, placements, mesh.layout.shape, mesh.coordinate);
}

std::vector<Segments> segments_of_ranks(const MeshInfo& mesh, std::int64_t n, std::int64_t dim,
                                        const Placements& placements, AxisMask axes) {
  const auto& shape = mesh.layout.shape;
  std::vector<Segments> all;
  for (std::int64_t m = 0; m < ranks_along(shape, axes); ++m) {
    all.push_back(shard_segments(n, dim, placements, shape, coordinate_along(shape, axes, m, mesh.coordinate)));
  }
  return all;
}

at::DimVector local_sizes(at::IntArrayRef sizes, const Placements& placements, at::IntArrayRef mesh_shape,
                          at::IntArrayRef coordinate) {
  at::DimVector local(sizes.begin(), sizes.end());
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    const SplitOrder order = split_order(static_cast<std::int64_t>(dim), placements, mesh_shape);
    if (!order.empty()) local[dim] = total_length(shard_segments(sizes[dim], order, mesh_shape, coordinate));
  }
  return local;
}

bool at_most_one_ragged(const Placements& placements) {
  for (std::size_t i = 0; i < placements.size(); ++i) {
    for (std::size_t j = 0; j < i && placements[i].is_ragged(); ++j) {
      if (placements[j].is_ragged() && placements[j].dim() == placements[i].dim()) return false;
    }
  }
  return true;
}

Placements normalize_placements(Placements placements, std::int64_t tensor_ndim, at::IntArrayRef mesh_shape) {
  TORCH_CHECK(placements.size() == mesh_shape.size(), "placements ", to_string(placements),
              " do not match a mesh of shape ", mesh_shape, ": one placement per mesh dimension is needed, ",
              placements.size(), " given");
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    Placement& p = placements[axis];
    if (!p.is_shard()) continue;
    TORCH_CHECK(p.dim() >= -tensor_ndim && p.dim() < tensor_ndim, "placements ", to_string(placements),
                " do not match a tensor with ", tensor_ndim, " dimensions: ", p.str(), " shards dimension ", p.dim());
    if (p.dim() < 0) p = p.with_dim(p.dim() + tensor_ndim);
    const auto ranks = static_cast<std::int64_t>(p.ragged_sizes().size());
    TORCH_CHECK(!p.is_ragged() || ranks == mesh_shape[axis], "placements ", to_string(placements),
                " do not match a mesh of shape ", mesh_shape, ": ", p.str(), " has sizes for ", ranks, " ranks, axis ",
                axis, " has ", mesh_shape[axis]);
  }
  TORCH_CHECK(at_most_one_ragged(placements), "placements ", to_string(placements),
              " have two ragged shards of one dimension; only one can be its outermost split");
  return placements;
}

}  // namespace dtensor
