// The offset of a view is a position of the base. A dimension of the view is a slice of one of the base if its stride
// is a multiple. Other dimensions of the base have one entry in the view (select).
#include "autograd/sliced_view.h"

#include <c10/util/irange.h>

#include <algorithm>
#include <numeric>

#include "internal/simulated.h"
#include "mesh/mesh_impl.h"
#include "redistribute/execute.h"
#include "redistribute/regions/halo_exchange.h"

namespace dtensor {
namespace {

// The position in each dimension of the element at `offset`; empty if there is none.
std::vector<std::int64_t> position_of(const TensorSpec& spec, std::int64_t offset) {
  std::vector<std::size_t> order(spec.sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return spec.strides[a] > spec.strides[b]; });
  std::vector<std::int64_t> position(order.size(), 0);
  for (const auto d : order) {
    if (spec.sizes[d] > 1 && spec.strides[d] > 0) position[d] = offset / spec.strides[d];
    offset -= position[d] * spec.strides[d];
  }
  return offset == 0 ? position : std::vector<std::int64_t>();
}

// The step of a dimension of the view along one of the base; 0 if it is none.
std::int64_t step_of(const TensorSpec& view, std::size_t v, const TensorSpec& base, std::size_t d) {
  if (view.sizes[v] <= 1) return 1;
  return base.strides[d] > 0 && view.strides[v] % base.strides[d] == 0 ? view.strides[v] / base.strides[d] : 0;
}

}  // namespace

std::optional<SlicedView> SlicedView::find(const TensorSpec& base, const TensorSpec& view, std::int64_t offset) {
  SlicedView found(base, view);
  const auto position = position_of(base, offset);
  const bool sliced = base.mesh == view.mesh && position.size() == base.sizes.size() && found.match(position, 0, 0);
  return sliced && found.is_placed_alike() ? std::optional(found) : std::nullopt;
}

// Assigns the dimensions of the base from `dim` on to those of the view from `view_dim` on.
bool SlicedView::match(const std::vector<std::int64_t>& position, std::size_t dim, std::size_t view_dim) {
  if (dim == position.size()) return view_dim == view_.sizes.size();
  const auto assigned = [&](std::int64_t step, std::int64_t length, std::optional<std::size_t> to) {
    if (step <= 0 || position[dim] + (length - 1) * step >= base_.sizes[dim]) return false;
    slices_.push_back({static_cast<std::int64_t>(dim), position[dim], step, length});
    view_dim_.push_back(to);
    if (match(position, dim + 1, to ? view_dim + 1 : view_dim)) return true;
    slices_.pop_back();
    view_dim_.pop_back();
    return false;
  };
  const bool is_slice =
      view_dim < view_.sizes.size() && assigned(step_of(view_, view_dim, base_, dim), view_.sizes[view_dim], view_dim);
  return is_slice || assigned(1, 1, std::nullopt);
}

bool SlicedView::is_placed_alike() const {
  for (const auto axis : c10::irange(base_.placements.size())) {
    const auto p = base_.placements[axis].as_storage(false), q = view_.placements[axis].as_storage(false);
    if ((base_.mesh->nontrivial_axes >> axis & 1) == 0 || (p.is_partial() && p == q)) continue;
    if (p.is_partial() || q.is_partial()) return false;
    const bool both = p.is_shard() && q.is_shard();
    if (both && view_dim_[static_cast<std::size_t>(p.dim())] != static_cast<std::size_t>(q.dim())) return false;
  }
  return true;
}

// Axes that shard a dimension of the base, or the same dimension of the view.
AxisMask SlicedView::axes_of(std::size_t dim) const {
  const auto of_base = shard_axes(&base_, static_cast<std::int64_t>(dim));
  return view_dim_[dim] ? of_base | shard_axes(&view_, static_cast<std::int64_t>(*view_dim_[dim])) : of_base;
}

// The rows of the view that the ranks along these axes have.
std::vector<Segments> SlicedView::view_rows(std::size_t dim, AxisMask axes) const {
  if (view_dim_[dim]) return segments_of_ranks(view_, static_cast<std::int64_t>(*view_dim_[dim]), axes);
  return std::vector<Segments>(segments_of_ranks(base_, static_cast<std::int64_t>(dim), axes).size(), {Segment{0, 1}});
}

at::Tensor SlicedView::read(const at::Tensor& base) const {
  at::Tensor rows = resolve_conj_and_neg(base);
  for (const auto d : c10::irange(slices_.size())) {
    const Slice& slice = slices_[d];
    rows = slice.rows_of(rows, own_segments(*base_.mesh, base_.sizes[d], slice.dim, base_.placements));
    const AxisMask axes = axes_of(d);
    if (axes == 0) continue;
    const HaloExchange exchange(as_mesh_impl(*base_.mesh).communicator(axes), slice.dim,
                                slice.within(segments_of_ranks(base_, slice.dim, axes)), view_rows(d, axes));
    rows = exchange.fetch_halo(rows);
  }
  for (std::size_t d = slices_.size(); d-- > 0;) {
    if (!view_dim_[d]) rows = rows.squeeze(static_cast<std::int64_t>(d));
  }
  return rows;
}

void SlicedView::write(const at::Tensor& view, const at::Tensor& base) const {
  at::Tensor rows = resolve_conj_and_neg(view);
  for (const auto d : c10::irange(slices_.size())) {
    if (!view_dim_[d]) rows = rows.unsqueeze(static_cast<std::int64_t>(d));
  }
  for (const auto d : c10::irange(slices_.size())) {
    const AxisMask axes = axes_of(d);
    if (axes == 0) continue;
    const Slice& slice = slices_[d];
    const HaloExchange exchange(as_mesh_impl(*base_.mesh).communicator(axes), slice.dim, view_rows(d, axes),
                                slice.within(segments_of_ranks(base_, slice.dim, axes)));
    rows = exchange.fetch_halo(rows);
  }
  copy_rows(rows, base, 0);
}

// A rank may have several ranges of rows in each dimension. If the view shares the base's memory, ATen does not copy
// between other strides, which dimensions of size 1 may have.
void SlicedView::copy_rows(const at::Tensor& rows, const at::Tensor& base, std::size_t dim) const {
  if (dim == slices_.size()) return static_cast<void>(base.copy_(shares_storage(rows, base) ? rows.clone() : rows));
  const Slice& slice = slices_[dim];
  std::int64_t first = 0;
  for (const at::Tensor& part :
       slice.views_of(base, own_segments(*base_.mesh, base_.sizes[dim], slice.dim, base_.placements))) {
    copy_rows(rows.narrow(slice.dim, first, part.size(slice.dim)), part, dim + 1);
    first += part.size(slice.dim);
  }
}

}  // namespace dtensor
