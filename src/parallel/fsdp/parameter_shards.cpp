// Computes placements and pieces; no communication.
#include "parallel/fsdp/parameter_shards.h"

#include <ATen/core/DimVector.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <numeric>

#include "internal/shard_segments.h"
#include "parallel/mesh_slice.h"

namespace dtensor::fsdp {
namespace {

std::int64_t axis_named(const DeviceMesh& mesh, const std::string& name) {
  const auto& names = mesh.names();
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? -1 : found - names.begin();
}

}  // namespace

bool has_own_mesh(const DeviceMesh& own, const DeviceMesh& mesh) {
  if (own == mesh || own == mesh.offloaded() || is_slice(own, mesh)) return false;
  const auto ranks = mesh.ranks();
  return std::all_of(own.ranks().begin(), own.ranks().end(),
                     [&](std::int64_t rank) { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); });
}

namespace {

void add_more_axes(Axes& axes, const DeviceMesh& mesh, const FsdpOptions& options) {
  for (std::size_t i = 1; i < options.shard_axes.size(); ++i) {
    const auto& name = options.shard_axes[i];
    const auto axis = axis_named(mesh, name);
    TORCH_CHECK(axis >= 0 && axis != axes.replicate && !axes.splits(axis),
                "fully_shard: FsdpOptions::shard_axes names '", name, "', which is not a further axis of ", mesh.str());
    if (mesh.size(axis) > 1) axes.shard.push_back(axis);
  }
  std::sort(axes.shard.begin(), axes.shard.end());
}

}  // namespace

Axes find_axes(const DeviceMesh& mesh, const FsdpOptions& options) {
  TORCH_CHECK_VALUE(!options.shard_axes.empty(), "fully_shard: expected an axis in FsdpOptions::shard_axes, got none");
  const auto named = axis_named(mesh, options.shard_axes[0]);
  const bool by_place = named < 0 && mesh.ndim() == 1;
  TORCH_CHECK(by_place || named >= 0 || (mesh.ndim() == 2 && mesh.names().empty()), "fully_shard: ", mesh.str(),
              " has no axis named '", options.shard_axes[0],
              "'; name the axis to shard over in FsdpOptions::shard_axes");
  Axes axes{{named}, axis_named(mesh, options.replicate_axis)};
  if (named < 0) axes = by_place ? Axes{{0}, -1} : Axes{{1}, 0};
  add_more_axes(axes, mesh, options);
  return axes;
}

Shape shard_shape(const DeviceMesh& mesh, const Axes& axes) {
  Shape shape;
  for (const auto axis : axes.shard) shape.push_back(mesh.size(axis));
  return shape;
}

std::int64_t shard_ranks(const DeviceMesh& mesh, const Axes& axes) {
  return c10::multiply_integers(shard_shape(mesh, axes));
}

Placements placements_on_mesh(const std::string& name, const DTensor& tensor, const DeviceMesh& mesh) {
  const auto own = tensor.mesh();
  if (own == mesh) return tensor.placements();
  TORCH_CHECK(is_slice(own, mesh), "fully_shard: parameter '", name, "' is on ", own.str(), ", which is no slice of ",
              mesh.str(), ". First create a unit for parameters of another mesh, with their mesh");
  return placements_on_full_mesh(tensor, mesh);
}

Placements add_shard(Placements placements, const DeviceMesh& mesh, const Axes& axes, std::int64_t dim) {
  for (const auto axis : axes.shard) {
    Placement& shard = placements[static_cast<std::size_t>(axis)];
    shard = Replicate();
    if (dim < 0) continue;
    // Other axes to the right that split the same dimension split it first, although they come later in the mesh.
    std::int64_t before = 1;
    for (std::int64_t i = axis + 1; i < mesh.ndim(); ++i) {
      if (!axes.splits(i) && placements[static_cast<std::size_t>(i)].is_shard(dim)) before *= mesh.size(i);
    }
    shard = after_split(Shard(dim), before).as_storage();
  }
  return placements;
}

std::int64_t ParameterLayout::numel() const {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

ParameterLayout ParameterLayout::shard_layout(std::size_t rank) const {
  Shape part = sizes;
  part[static_cast<std::size_t>(dim)] = pieces[rank].length;
  return make_parameter_layout(part, strides);
}

at::Tensor ParameterLayout::shard_view(const at::Tensor& gathered, std::size_t rank) const {
  at::DimVector part(sizes);
  part[static_cast<std::size_t>(dim)] = pieces[rank].length;
  return view_of(gathered, gathered.scalar_type(), part, gathered.strides(),
                 pieces[rank].offset * gathered.stride(dim));
}

at::Tensor view_of(const at::Tensor& base, at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides,
                   std::int64_t offset) {
  const auto first = base.storage_offset() * static_cast<std::int64_t>(base.element_size());
  auto view = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(base.storage()), base.key_set(),
                                                       c10::scalarTypeToTypeMeta(dtype));
  auto* impl = view.unsafeGetTensorImpl();
  impl->set_storage_offset(first / static_cast<std::int64_t>(c10::elementSize(dtype)) + offset);
  impl->set_sizes_and_strides(sizes, strides);
  return view;
}

ParameterLayout make_parameter_layout(at::IntArrayRef full, at::IntArrayRef order) {
  ParameterLayout layout{full.vec(), Shape(full.size(), 1), 0, {}};
  std::vector<std::size_t> dims(full.size());
  std::iota(dims.begin(), dims.end(), std::size_t{0});
  std::stable_sort(dims.begin(), dims.end(), [&](auto a, auto b) { return order[a] > order[b]; });
  std::int64_t step = 1;
  for (auto d = dims.rbegin(); d != dims.rend(); ++d) {
    layout.strides[*d] = step;
    step *= std::max<std::int64_t>(full[*d], 1);
  }
  return layout;
}

ParameterLayout make_parameter_layout(at::IntArrayRef full, at::IntArrayRef order, const Placement& shard,
                                      at::IntArrayRef ranks) {
  auto layout = make_parameter_layout(full, order);
  const auto dim = layout.dim = shard.dim();
  const Placements shards(ranks.size(), lists_sizes(shard) ? shard : Shard(dim));
  Shape at(ranks.size(), 0);
  for (std::int64_t r = 0; r < c10::multiply_integers(ranks); ++r) {
    std::int64_t rest = r;
    for (std::size_t axis = ranks.size(); axis-- > 0; rest /= ranks[axis]) at[axis] = rest % ranks[axis];
    const Segment piece = shard_segments(full[static_cast<std::size_t>(dim)], dim, shards, ranks, at)[0];
    layout.pieces.push_back({piece.offset, piece.length});
  }
  return layout;
}

}  // namespace dtensor::fsdp
