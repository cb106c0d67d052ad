// Ghost layers of grids: each dimension is a GraphHalo, whose rows are the layers. Dimensions follow one another, so
// that later ones exchange the ghosts of earlier ones, which gives corners.
#include "dtensor/halo.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "internal/ranks/failed_call.h"
#include "internal/shard_segments.h"

namespace dtensor {
namespace {

constexpr std::int64_t kOutside = -1;

// The element of [0, n) that a position has the value of, or kOutside.
std::int64_t source_of(std::int64_t position, std::int64_t n, Boundary boundary) {
  if (position >= 0 && position < n) return position;
  switch (boundary) {
    case Boundary::zero:
      return kOutside;
    case Boundary::replicate:
      return std::clamp<std::int64_t>(position, 0, n - 1);
    case Boundary::reflect:
      return position < 0 ? -position : 2 * (n - 1) - position;
    case Boundary::periodic:
      return (position + n) % n;
  }
  return kOutside;
}

void check_layers(const std::vector<GhostLayers>& layers, at::IntArrayRef sizes) {
  std::vector<bool> seen(sizes.size());
  for (const auto& l : layers) {
    TORCH_CHECK(l.dim >= 0 && l.dim < std::ssize(sizes), "GridHalo: expected a dimension in [0, ", sizes.size(),
                "), got layers of dimension ", l.dim);
    const auto dim = static_cast<std::size_t>(l.dim);
    TORCH_CHECK(!seen[dim], "GridHalo: expected one entry for each dimension, got two for dimension ", l.dim);
    seen[dim] = true;
    const auto most = std::max(l.before, l.after), n = sizes[dim];
    TORCH_CHECK(l.before >= 0 && l.after >= 0, "GridHalo: expected numbers of layers of at least 0, got ", l.before,
                " and ", l.after, " for dimension ", l.dim);
    const bool reflects = l.boundary == Boundary::reflect;
    TORCH_CHECK(!(reflects || l.boundary == Boundary::periodic) || n == 0 || most <= n - (reflects ? 1 : 0),
                "GridHalo: expected at most ", n - (reflects ? 1 : 0), reflects ? " reflected" : " periodic",
                " layers for dimension ", l.dim, " of size ", n, ", got ", most);
  }
}

// The ranges of one dimension on all ranks that share it.
struct Ranges {
  Communicator ranks;
  std::vector<Segment> of_rank;
};

Ranges ranges_of(const DeviceMesh& mesh, const Placements& placements, at::IntArrayRef sizes, std::int64_t dim) {
  std::vector<std::int64_t> axes;
  for (std::int64_t a = 0; a < mesh.ndim(); ++a) {
    const Placement& p = placements[static_cast<std::size_t>(a)];
    if (p.is_shard() && p.dim() == dim) axes.push_back(a);
  }
  // An unsharded dimension is exchanged by each rank with itself, on a communicator that exists in any case.
  Ranges all{axes.empty() ? mesh.communicator() : mesh.communicator(axes), {}};
  for (const std::int64_t rank : all.ranks.ranks()) {
    const auto n = sizes[static_cast<std::size_t>(dim)];
    const auto segments = shard_segments(n, dim, placements, mesh.shape(), mesh.coordinate_of(rank).value());
    TORCH_CHECK(segments.size() <= 1, "GridHalo: expected one range of dimension ", dim, " on each rank, got ",
                segments.size(), " of ", to_string(placements), "; use Shard");
    all.of_rank.push_back(segments.empty() ? Segment{0, 0} : segments[0]);
  }
  return all;
}

// The exchange along one dimension.
struct Dimension {
  GhostLayers layers;
  Segment own;
  GraphHalo halo;
  at::Tensor order;                        // for each row with ghosts, its row in the halo's result
  std::int64_t zeros_before, zeros_after;  // rows of zeros outside of the grid

  bool has_ghosts() const { return own.length > 0; }

  void check(const at::Tensor& local) const {
    TORCH_CHECK(local.size(layers.dim) == own.length, "GridHalo::exchange: expected ", own.length,
                " elements of dimension ", layers.dim, " on this rank, got a tensor of sizes ", local.sizes());
  }

  at::Tensor exchange(const at::Tensor& local) const {
    const at::Tensor rows = halo.exchange(local.movedim(layers.dim, 0));
    const at::Tensor result = rows.index_select(0, order.to(rows.device()));
    std::vector<std::int64_t> amounts(static_cast<std::size_t>(2 * local.dim()), 0);
    amounts[amounts.size() - 2] = zeros_before;
    amounts[amounts.size() - 1] = zeros_after;
    return at::constant_pad_nd(result, amounts, 0).movedim(0, layers.dim);
  }
};

// The positions of a rank's ghosts and of its own rows, in order.
std::vector<std::int64_t> positions_of(const Segment& own, const GhostLayers& layers) {
  std::vector<std::int64_t> positions;
  if (own.length == 0) return positions;
  for (auto p = own.offset - layers.before; p < own.offset + own.length + layers.after; ++p) positions.push_back(p);
  return positions;
}

// Calls body(element) for each ghost of a rank that is an element of the grid, in order.
template <class Body>
void for_each_ghost(const Segment& own, const GhostLayers& layers, std::int64_t n, const Body& body) {
  for (const auto position : positions_of(own, layers)) {
    const bool is_own = position >= own.offset && position < own.offset + own.length;
    const auto element = is_own ? kOutside : source_of(position, n, layers.boundary);
    if (element != kOutside) body(element);
  }
}

bool contains(const Segment& s, std::int64_t element) { return element >= s.offset && element < s.offset + s.length; }

GraphHalo halo_of(const Ranges& ranges, const GhostLayers& layers, std::int64_t n, bool sharded) {
  const auto me = static_cast<std::size_t>(ranges.ranks.rank());
  const Segment own = ranges.of_rank[me];
  std::vector<at::Tensor> lists;
  for (std::size_t rank = 0; rank < ranges.of_rank.size(); ++rank) {
    std::vector<std::int64_t> sent;
    if (sharded || rank == me) {
      for_each_ghost(ranges.of_rank[rank], layers, n, [&](std::int64_t element) {
        if (contains(own, element)) sent.push_back(element - own.offset);
      });
    }
    lists.push_back(at::tensor(sent, at::kLong));
  }
  return GraphHalo(ranges.ranks, own.length, lists);
}

// The rows of the halo's result in the order of positions. Ghosts arrive ordered by the rank that owns them.
at::Tensor order_of(const Ranges& ranges, const GhostLayers& layers, std::int64_t n, bool sharded) {
  const auto me = static_cast<std::size_t>(ranges.ranks.rank());
  const Segment own = ranges.of_rank[me];
  const auto owner_of = [&](std::int64_t element) {
    if (!sharded) return me;
    std::size_t rank = 0;
    while (!contains(ranges.of_rank[rank], element)) ++rank;
    return rank;
  };
  std::vector<std::int64_t> next(ranges.of_rank.size() + 1, 0), rows;
  for_each_ghost(own, layers, n, [&](std::int64_t element) { ++next[owner_of(element) + 1]; });
  next[0] = own.length;
  for (std::size_t rank = 1; rank < next.size(); ++rank) next[rank] += next[rank - 1];
  for (const auto position : positions_of(own, layers)) {
    if (contains(own, position)) {
      rows.push_back(position - own.offset);
    } else if (const auto element = source_of(position, n, layers.boundary); element != kOutside) {
      rows.push_back(next[owner_of(element)]++);
    }
  }
  return at::tensor(rows, at::kLong);
}

Dimension make_dimension(const DeviceMesh& mesh, const Placements& placements, at::IntArrayRef sizes,
                         const GhostLayers& layers) {
  const Ranges ranges = ranges_of(mesh, placements, sizes, layers.dim);
  const auto n = sizes[static_cast<std::size_t>(layers.dim)];
  const bool sharded = std::any_of(placements.begin(), placements.end(),
                                   [&](const Placement& p) { return p.is_shard() && p.dim() == layers.dim; });
  const Segment own = ranges.of_rank[static_cast<std::size_t>(ranges.ranks.rank())];
  const bool zero = layers.boundary == Boundary::zero && own.length > 0;
  return {layers,
          own,
          halo_of(ranges, layers, n, sharded),
          order_of(ranges, layers, n, sharded),
          zero ? std::max<std::int64_t>(layers.before - own.offset, 0) : 0,
          zero ? std::max<std::int64_t>(own.offset + own.length + layers.after - n, 0) : 0};
}

}  // namespace

struct GridHalo::Impl {
  DeviceMesh mesh;
  Placements placements;
  std::vector<std::int64_t> sizes;
  std::vector<Dimension> dimensions;
  std::vector<Communicator> groups = {};  // of the dimensions
};

GridHalo::GridHalo(const DeviceMesh& mesh, const Placements& placements, at::IntArrayRef sizes,
                   std::vector<GhostLayers> layers) {
  TORCH_CHECK(mesh && mesh.is_member(), "GridHalo: expected a rank of the mesh, got ",
              mesh ? "a rank outside of it" : "an empty DeviceMesh");
  check_layers(layers, sizes);
  TORCH_CHECK(std::ssize(placements) == mesh.ndim(), "GridHalo: expected one placement for each of the ", mesh.ndim(),
              " dimensions of the mesh, got ", to_string(placements));
  Impl impl{mesh, placements, sizes.vec(), {}};
  for (const auto& l : layers) impl.dimensions.push_back(make_dimension(mesh, placements, sizes, l));
  for (const auto& dimension : impl.dimensions) impl.groups.push_back(dimension.halo.ranks());
  impl_ = std::make_shared<const Impl>(std::move(impl));
}

at::Tensor GridHalo::exchange(const at::Tensor& local) const {
  return skipped_if_invalid(impl_->groups, [&] {
    for (const auto& dimension : impl_->dimensions) dimension.check(local);
    at::Tensor result = local;
    for (const auto& dimension : impl_->dimensions) result = dimension.exchange(result);
    return result;
  });
}

at::Tensor GridHalo::interior(const at::Tensor& array) const {
  at::Tensor view = array;
  for (const auto& d : impl_->dimensions) {
    if (!d.has_ghosts()) continue;
    const auto expected = d.own.length + d.layers.before + d.layers.after;
    TORCH_CHECK(view.size(d.layers.dim) == expected, "GridHalo::interior: expected ", expected,
                " elements of dimension ", d.layers.dim, " on this rank (", d.own.length,
                " and ghosts), got an array of ", "sizes ", array.sizes());
    view = view.narrow(d.layers.dim, d.layers.before, d.own.length);
  }
  return view;
}

// A local tensor with gaps between its rows belongs to global strides with gaps.
DTensor GridHalo::from_local(const at::Tensor& array) const {
  auto padded = impl_->sizes;
  for (const auto& d : impl_->dimensions)
    padded[static_cast<std::size_t>(d.layers.dim)] += d.layers.before + d.layers.after;
  std::vector<std::int64_t> strides(padded.size(), 1);
  for (std::size_t d = padded.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<std::int64_t>(padded[d], 1);
  return DTensor::from_local(interior(array), impl_->mesh, impl_->placements, impl_->sizes, strides);
}

void GridHalo::update(const at::Tensor& array) const {
  const at::NoGradGuard no_grad;
  const at::Tensor own = skipped_if_invalid(impl_->groups, [&] { return interior(array); });
  const at::Tensor extended = exchange(own);
  for (const auto& d : impl_->dimensions) {
    const auto copy = [&](std::int64_t first, std::int64_t count) {
      array.narrow(d.layers.dim, first, count).copy_(extended.narrow(d.layers.dim, first, count));
    };
    if (!d.has_ghosts()) continue;
    copy(0, d.layers.before);
    copy(d.layers.before + d.own.length, d.layers.after);
  }
}

}  // namespace dtensor
