// Mesh layouts: validation and index arithmetic, row-major over the shape. A line or slice is defined by the
// dimensions that vary; the others are fixed at a coordinate.
#include "mesh/mesh_layout.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace dtensor {
namespace {

std::int64_t product(at::IntArrayRef values) {
  std::int64_t p = 1;
  for (const auto v : values) {
    TORCH_CHECK(!__builtin_mul_overflow(p, v, &p), "mesh shape ", values, " overflows the number of ranks");
  }
  return p;
}

void check_shape(at::IntArrayRef shape) {
  TORCH_CHECK(!shape.empty(), "a mesh needs at least one dimension");
  TORCH_CHECK(static_cast<std::int64_t>(shape.size()) <= kMaxMeshDims, "a mesh has at most ", kMaxMeshDims,
              " dimensions, got ", shape.size());
  for (const auto n : shape) TORCH_CHECK(n >= 1, "mesh sizes must be at least 1, got ", shape);
}

std::string joined(const std::vector<std::string>& names, const char* separator) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : separator) + name;
  return text;
}

void check_names(const std::vector<std::string>& names, at::IntArrayRef shape) {
  if (names.empty()) return;
  TORCH_CHECK(names.size() == shape.size(), "a mesh of shape ", shape, " needs ", shape.size(), " names, got ",
              names.size(), ": ", joined(names, ", "));
  std::set<std::string> seen;
  for (const auto& name : names) {
    TORCH_CHECK(!name.empty(), "mesh dimension names must not be empty");
    TORCH_CHECK(seen.insert(name).second, "mesh dimension name '", name, "' is given twice in ", joined(names, ", "));
  }
}

void check_ranks(at::IntArrayRef ranks, std::int64_t world_size) {
  std::set<std::int64_t> seen;
  for (const auto r : ranks) {
    TORCH_CHECK(r >= 0 && r < world_size, "mesh rank ", r, " is not in a world of ", world_size, " ranks");
    TORCH_CHECK(seen.insert(r).second, "rank ", r, " is in the mesh twice: ", ranks);
  }
}

std::vector<std::int64_t> row_major_strides(at::IntArrayRef shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (auto i = static_cast<std::int64_t>(shape.size()) - 2; i >= 0; --i) strides[i] = strides[i + 1] * shape[i + 1];
  return strides;
}

// The ranks at `coordinate`, with `dims` varying row-major in the given order.
std::vector<std::int64_t> gather_ranks(const MeshLayout& layout, at::IntArrayRef dims, at::IntArrayRef coordinate) {
  const auto strides = row_major_strides(layout.shape);
  std::int64_t base = 0;
  for (std::int64_t d = 0; d < layout.ndim(); ++d) {
    const bool runs = std::find(dims.begin(), dims.end(), d) != dims.end();
    base += runs ? 0 : coordinate[d] * strides[d];
  }
  std::vector<std::int64_t> index{base};
  for (const auto d : dims) {
    std::vector<std::int64_t> next;
    next.reserve(index.size() * layout.shape[d]);
    for (const auto start : index) {
      for (std::int64_t i = 0; i < layout.shape[d]; ++i) next.push_back(start + i * strides[d]);
    }
    index = std::move(next);
  }
  for (auto& i : index) i = layout.ranks[i];
  return index;
}

}  // namespace

MeshLayout make_layout(std::int64_t world_size, std::vector<std::int64_t> ranks, at::IntArrayRef shape,
                       std::vector<std::string> names) {
  check_shape(shape);
  const auto count = static_cast<std::int64_t>(ranks.size());
  TORCH_CHECK(product(shape) == count, "mesh shape ", shape, " holds ", product(shape), " ranks, but ", count,
              " were given");
  check_ranks(ranks, world_size);
  check_names(names, shape);
  return {shape.vec(), std::move(ranks), std::move(names)};
}

MeshLayout make_layout(std::int64_t world_size, at::IntArrayRef shape, std::vector<std::string> names) {
  check_shape(shape);
  const auto n = product(shape);
  TORCH_CHECK(n <= world_size, "mesh shape ", shape, " needs ", n, " ranks, but the world has ", world_size);
  check_names(names, shape);
  std::vector<std::int64_t> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  return {shape.vec(), std::move(ranks), std::move(names)};
}

std::int64_t dim_of_name(const MeshLayout& layout, const std::string& name) {
  const auto it = std::find(layout.names.begin(), layout.names.end(), name);
  TORCH_CHECK(
      it != layout.names.end(), "the mesh has no dimension '", name, "'; ",
      layout.names.empty() ? "its dimensions have no names" : "its dimensions are: ", joined(layout.names, ", "));
  return it - layout.names.begin();
}

std::int64_t checked_dim(const MeshLayout& layout, std::int64_t dim) {
  const auto n = layout.ndim();
  TORCH_CHECK(dim >= -n && dim < n, "mesh dimension ", dim, " is out of range for a mesh of ", n, " dimensions");
  return dim < 0 ? dim + n : dim;
}

MeshLayout slice_layout(const MeshLayout& layout, at::IntArrayRef dims, at::IntArrayRef coordinate) {
  TORCH_CHECK(!dims.empty(), "a slice of a mesh needs at least one dimension");
  MeshLayout slice;
  std::vector<std::int64_t> running;
  for (const auto dim : dims) {
    const auto d = checked_dim(layout, dim);
    TORCH_CHECK(std::find(running.begin(), running.end(), d) == running.end(), "mesh dimension '", dim_title(layout, d),
                "' is sliced twice");
    running.push_back(d);
    slice.shape.push_back(layout.shape[d]);
    if (!layout.names.empty()) slice.names.push_back(layout.names[d]);
  }
  slice.ranks = gather_ranks(layout, running, coordinate);
  return slice;
}

MeshLayout flatten_layout(const MeshLayout& layout, const std::string& name) {
  std::vector<std::string> names;
  if (!name.empty() || !layout.names.empty()) names.push_back(name.empty() ? joined(layout.names, "_") : name);
  return {{layout.size()}, layout.ranks, std::move(names)};
}

MeshLayout view_layout(const MeshLayout& layout, at::IntArrayRef shape, std::vector<std::string> names) {
  check_shape(shape);
  TORCH_CHECK(product(shape) == layout.size(), "a mesh of shape ", at::IntArrayRef(layout.shape), " (", layout.size(),
              " ranks) cannot be viewed as ", shape, " (", product(shape), " ranks)");
  check_names(names, shape);
  return {shape.vec(), layout.ranks, std::move(names)};
}

std::vector<std::int64_t> line_ranks(const MeshLayout& layout, AxisMask axes, at::IntArrayRef coordinate) {
  TORCH_CHECK((axes >> layout.ndim()) == 0, "axis mask ", axes, " names a dimension that a mesh of ", layout.ndim(),
              " dimensions lacks");
  std::vector<std::int64_t> dims;
  for (std::int64_t d = 0; d < layout.ndim(); ++d) {
    if ((axes >> d) & 1U) dims.push_back(d);
  }
  return gather_ranks(layout, dims, coordinate);
}

}  // namespace dtensor
