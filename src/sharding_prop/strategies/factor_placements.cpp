// Placements of compound dimensions. Axes apply in mesh order, from the left. M is the number of elements that this
// rank has of the factors more major than the sharded one. The placement is a StridedShard with split factor M, or a
// Shard if M is 1. A zigzag split has that split factor itself. If several axes shard one compound dimension, the
// segments of the placements (placement/shard_map.h) are compared with those of the factors.
#include "sharding_prop/strategies/factor_placements.h"

#include <c10/util/accumulate.h>

#include <algorithm>

#include "placement/shard_map.h"

namespace dtensor {
namespace {

constexpr std::size_t kMostSegments = 1 << 14;  // a strategy with more segments is not offered

struct Place {
  std::int64_t dim = -1;
  std::size_t position = 0;
};

Place find_factor(const TensorState& tensor, int factor) {
  for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
    for (std::size_t k = 0; k < tensor.dims[d].size(); ++k) {
      if (tensor.dims[d][k] == factor) return {static_cast<std::int64_t>(d), k};
    }
  }
  return {};
}

// Number of elements of the factors more major than `position` that one rank has after the axes before `axis`.
std::int64_t major_length(const BoundRule& p, const Rule::DimFactors& dim, std::size_t position,
                          const Assignment& chosen, std::size_t axis) {
  std::int64_t length = 1;
  for (std::size_t k = 0; k < position; ++k) {
    length *= p.factors[static_cast<std::size_t>(dim[k])].size / parts_of_factor(p, dim[k], chosen, axis);
  }
  return length;
}

Segments join(Segments segments) {
  Segments joined;
  for (const Segment& s : segments) {
    if (s.length == 0) continue;
    if (!joined.empty() && joined.back().offset + joined.back().length == s.offset) {
      joined.back().length += s.length;
    } else {
      joined.push_back(s);
    }
  }
  return joined;
}

Placements factor_placements(const Assignment& chosen, int factor) {
  Placements placements;
  for (const AxisChoice& c : chosen) {
    const bool here = c.kind == AxisChoice::Kind::factor && c.index == factor;
    placements.push_back(here ? c.split : Replicate());
  }
  return placements;
}

// The segments of a compound dimension at a coordinate, computed from its factors; nothing if there are too many.
std::optional<Segments> factor_segments(const BoundRule& p, const Rule::DimFactors& dim, const Assignment& chosen,
                                        at::IntArrayRef shape, at::IntArrayRef coordinate) {
  Segments held{{0, 1}};
  for (const int f : dim) {
    const std::int64_t n = p.factors[static_cast<std::size_t>(f)].size;
    const Segments parts = shard_segments(n, 0, factor_placements(chosen, f), shape, coordinate);
    const bool all = parts.size() == 1 && parts[0].length == n;
    Segments next;
    for (const Segment& s : held) {
      if (all) {
        next.push_back({s.offset * n, s.length * n});
        continue;
      }
      if (next.size() + static_cast<std::size_t>(s.length) * parts.size() > kMostSegments) return std::nullopt;
      for (std::int64_t i = 0; i < s.length; ++i) {
        for (const Segment& part : parts) next.push_back({(s.offset + i) * n + part.offset, part.length});
      }
    }
    held = join(std::move(next));
  }
  return held;
}

bool same_segments(const BoundRule& p, const TensorState& tensor, std::size_t d, std::int64_t size,
                   const Assignment& chosen, const Placements& placements, at::IntArrayRef shape,
                   at::IntArrayRef coordinate) {
  const auto wanted = factor_segments(p, tensor.dims[d], chosen, shape, coordinate);
  if (!wanted) return false;
  return join(shard_segments(size, static_cast<std::int64_t>(d), placements, shape, coordinate)) == *wanted;
}

int axes_on_dim(std::size_t d, std::size_t axes, const Placements& placements) {
  int count = 0;
  for (std::size_t a = 0; a < axes; ++a) count += placements[a].is_shard(static_cast<std::int64_t>(d)) ? 1 : 0;
  return count;
}

bool shards(const AxisChoice& choice, const Rule::DimFactors& dim) {
  return choice.kind == AxisChoice::Kind::factor && std::find(dim.begin(), dim.end(), choice.index) != dim.end();
}

// Whether one factor of a compound dimension has a ragged split and a second split applies. No placement expresses
// this.
bool splits_along_ragged(const Rule::DimFactors& dim, const Assignment& chosen) {
  int splits = 0;
  bool ragged = false;
  for (const AxisChoice& c : chosen) {
    if (!shards(c, dim)) continue;
    ++splits;
    ragged |= c.split.is_ragged();
  }
  return dim.size() > 1 && ragged && splits > 1;
}

// Number of elements of a compound dimension per element of its most major factor.
std::int64_t minor_length(const BoundRule& p, const Rule::DimFactors& dim) {
  std::int64_t length = 1;
  for (std::size_t k = 1; k < dim.size(); ++k) length *= p.factors[static_cast<std::size_t>(dim[k])].size;
  return length;
}

Placement ragged_shard_of(const BoundRule& p, const Rule::DimFactors& dim, std::int64_t at, const Placement& split) {
  at::DimVector sizes(split.ragged_sizes());
  for (auto& n : sizes) n *= minor_length(p, dim);
  return RaggedShard(at, sizes);
}

// Nothing if a boundary lies within an element of the factor.
std::optional<Placement> ragged_split(const BoundRule& p, const Rule::DimFactors& dim, const Placement& ragged) {
  const std::int64_t minor = minor_length(p, dim);
  at::DimVector sizes(ragged.ragged_sizes());
  for (auto& n : sizes) {
    if (minor < 1 || n % minor != 0) return std::nullopt;
    n /= minor;
  }
  const bool fits = c10::sum_integers(sizes) == p.factors[static_cast<std::size_t>(dim[0])].size;
  return fits ? std::optional(RaggedShard(0, sizes)) : std::nullopt;
}

bool listed_sizes_fit(const Placements& placements, at::IntArrayRef sizes) {
  return std::all_of(placements.begin(), placements.end(), [&](const Placement& p) {
    return !p.is_shard() || fits_size(p, sizes[static_cast<std::size_t>(p.dim())]);
  });
}

// Compares the first and the last rank of every axis, where a wrong order or split shows.
bool fits_at_corners(const BoundRule& p, const TensorState& tensor, std::size_t d, std::int64_t size,
                     const Assignment& chosen, const Placements& placements) {
  const std::size_t axes = chosen.size();
  const at::IntArrayRef shape = p.mesh_shape().slice(0, axes);
  for (unsigned corner = 0; corner < 1u << axes; ++corner) {
    Coordinate coordinate;
    for (std::size_t a = 0; a < axes; ++a) coordinate.push_back((corner >> a & 1u) != 0 ? shape[a] - 1 : 0);
    if (!same_segments(p, tensor, d, size, chosen, placements, shape, coordinate)) return false;
  }
  return true;
}

}  // namespace

std::int64_t parts_of_factor(const BoundRule& p, int factor, const Assignment& chosen, std::size_t axes) {
  std::int64_t parts = 1;
  for (std::size_t a = 0; a < std::min(axes, chosen.size()); ++a) {
    const AxisChoice& c = chosen[a];
    if (c.kind == AxisChoice::Kind::factor && c.index == factor) parts *= p.mesh_shape()[a];
  }
  return parts;
}

std::int64_t smallest_part(const BoundRule& p, int factor, const Assignment& chosen) {
  std::int64_t n = p.factors[static_cast<std::size_t>(factor)].size;
  const auto here = [&](const AxisChoice& c) { return c.kind == AxisChoice::Kind::factor && c.index == factor; };
  for (const AxisChoice& c : chosen) {
    const auto parts = c.split.ragged_sizes();
    if (here(c) && !parts.empty()) n = *std::min_element(parts.begin(), parts.end());
  }
  for (std::size_t a = 0; a < chosen.size(); ++a) {
    const Placement& split = chosen[a].split;
    if (!here(chosen[a]) || split.is_ragged()) continue;
    const std::int64_t parts = p.mesh_shape()[a], pieces = split.split_factor();
    if (split.is_zigzag()) {
      n = pieces > 1 && n % pieces != 0 ? 0 : pieces * 2 * (n / pieces / (2 * parts));
      continue;
    }
    // Each piece of a strided shard is chunked separately, and its last chunk may be empty.
    n = pieces > 1 ? (n % (pieces * parts) == 0 ? n / parts : 0) : chunk(n, parts, parts - 1).length;
  }
  return n;
}

bool is_cut_at_blocks(const BoundRule& p, int factor, const Assignment& chosen) {
  const FactorState& state = p.factors[static_cast<std::size_t>(factor)];
  const at::IntArrayRef shape = p.mesh_shape().slice(0, chosen.size());
  const Placements placements = factor_placements(chosen, factor);
  const std::int64_t ranks = c10::multiply_integers(shape);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    Coordinate coordinate(shape.size());
    std::int64_t rest = rank;
    for (std::size_t a = shape.size(); a-- > 0; rest /= shape[a]) coordinate[a] = rest % shape[a];
    for (const Segment& s : join(shard_segments(state.size, 0, placements, shape, coordinate))) {
      const std::int64_t end = s.offset + s.length;
      if (s.offset % state.block != 0 || (end % state.block != 0 && end != state.size)) return false;
    }
  }
  return true;
}

std::optional<Placement> shard_of_factor(const BoundRule& p, const TensorState& tensor, const Assignment& chosen,
                                         std::size_t axis, bool& valid) {
  const AxisChoice& choice = chosen[axis];
  const Place place = find_factor(tensor, choice.index);
  if (place.dim < 0) return std::nullopt;
  const Rule::DimFactors& dim = tensor.dims[static_cast<std::size_t>(place.dim)];
  if (splits_along_ragged(dim, chosen)) valid = false;
  if (choice.split.is_ragged()) {
    if (place.position > 0) valid = false;
    return ragged_shard_of(p, dim, place.dim, choice.split);
  }
  const std::int64_t major = major_length(p, dim, place.position, chosen, axis);
  if (major > 1 && choice.split.split_factor() > 1) valid = false;
  const std::int64_t split = std::max<std::int64_t>(major, 1) * choice.split.split_factor();
  if (choice.split.is_zigzag()) return ZigzagShard(place.dim, split);
  return split > 1 ? StridedShard(place.dim, split) : Shard(place.dim);
}

std::optional<Placement> split_of_factor(const BoundRule& p, const Rule::DimFactors& dim, int factor,
                                         const Placement& shard) {
  if (std::find(dim.begin(), dim.end(), factor) == dim.end()) return std::nullopt;
  const bool major = dim[0] == factor;
  if (shard.is_zigzag()) return ZigzagShard(0, major ? shard.split_factor() : 1);
  if (!major) return std::nullopt;
  if (shard.is_ragged()) return ragged_split(p, dim, shard);
  return shard.is_strided() ? StridedShard(0, shard.split_factor()) : Shard(0);
}

std::string describe_split(const Placement& split) {
  if (split.is_strided()) return " in " + std::to_string(split.split_factor()) + " pieces";
  return split.is_ragged() || split.is_zigzag() ? " as " + split.str() : "";
}

bool placements_fit_factors(const BoundRule& p, const TensorState& tensor, at::IntArrayRef sizes,
                            const Assignment& chosen, const Placements& placements) {
  if (!at_most_one_ragged(placements) || !listed_sizes_fit(placements, sizes)) return false;
  Placements decided(placements.begin(), placements.begin() + static_cast<std::ptrdiff_t>(chosen.size()));
  for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
    if (tensor.dims[d].size() < 2 || axes_on_dim(d, chosen.size(), placements) < 2) continue;
    if (!fits_at_corners(p, tensor, d, sizes[d], chosen, decided)) return false;
  }
  return true;
}

}  // namespace dtensor
