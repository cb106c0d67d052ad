// What the ranks of a mesh must agree on before a tensor becomes a DTensor: all exchange their metadata, and all get
// the same result or the same error. Infers the global sizes from the local sizes, and makes the values of a tensor
// equal that every rank passes in full.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/Contiguity.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <numeric>

#include "autograd/conversion_nodes.h"
#include "internal/aten_scopes.h"
#include "mesh/content_hash.h"
#include "placement/shard_map.h"

namespace dtensor {
namespace {

constexpr std::int64_t kMaxDims = 64;  // as in ATen

struct LocalShape {
  std::vector<std::int64_t> sizes, strides;
  std::int64_t dtype;
  std::int64_t hash;
};

const Communicator& all_ranks(const MeshImpl& mesh) {
  return mesh.communicator(static_cast<AxisMask>((1u << mesh.layout.ndim()) - 1));
}

// Returns one entry per rank of the mesh, in the order of layout.ranks. `what` is the caller's name for the error.
std::vector<LocalShape> exchange_shapes(const MeshImpl& mesh, const at::Tensor& local, const char* what,
                                        std::int64_t hash = 0) {
  constexpr std::int64_t kHeader = 3, kRow = kHeader + 2 * kMaxDims;
  const auto& comm = all_ranks(mesh);
  const LocalBelowAutogradGuard regular;
  auto mine = at::full({kRow}, -1, at::kLong);
  auto* out = mine.mutable_data_ptr<std::int64_t>();
  out[0] = local.dim();
  out[1] = static_cast<std::int64_t>(local.scalar_type());
  out[2] = hash;
  const auto dims = std::min(local.dim(), kMaxDims);
  std::copy_n(local.sizes().begin(), dims, out + kHeader);
  std::copy_n(local.strides().begin(), dims, out + kHeader + kMaxDims);
  auto all = at::empty({comm.size(), kRow}, at::kLong);
  comm.all_gather(all.unbind(0), mine).wait();
  std::vector<LocalShape> shapes;
  for (int r = 0; r < comm.size(); ++r) {
    const auto* row = all.const_data_ptr<std::int64_t>() + r * kRow;
    TORCH_CHECK(row[0] <= kMaxDims, what, ": expected at most ", kMaxDims, " dimensions, got ", row[0], " on rank ",
                mesh.layout.ranks[r]);
    const auto *sizes = row + kHeader, *strides = sizes + kMaxDims;
    shapes.push_back({{sizes, sizes + row[0]}, {strides, strides + row[0]}, row[1], row[2]});
  }
  return shapes;
}

// Sum of the local sizes along `dim` over the ranks that split it, at coordinate 0 of the other axes.
std::int64_t total_size(const MeshLayout& layout, const Placements& placements, const std::vector<LocalShape>& shapes,
                        std::int64_t dim) {
  std::int64_t total = 0;
  for (std::size_t r = 0; r < shapes.size(); ++r) {
    const auto coordinate = coordinate_of_index(layout, static_cast<std::int64_t>(r));
    bool counts = true;
    for (std::size_t axis = 0; axis < placements.size(); ++axis) {
      if (!placements[axis].is_shard(dim) && coordinate[axis] != 0) counts = false;
    }
    if (counts) total += shapes[r].sizes[static_cast<std::size_t>(dim)];
  }
  return total;
}

std::string list_shapes(const MeshLayout& layout, const std::vector<LocalShape>& shapes) {
  std::string text;
  for (std::size_t r = 0; r < shapes.size(); ++r) {
    text += c10::str(r == 0 ? "" : ", ", "rank ", layout.ranks[r], ": ", static_cast<c10::ScalarType>(shapes[r].dtype),
                     " [", c10::Join(", ", shapes[r].sizes), "]");
  }
  return text;
}

at::DimVector agree_sizes(const MeshImpl& mesh, const Placements& placements, const std::vector<LocalShape>& shapes) {
  const auto& layout = mesh.layout;
  for (const auto& shape : shapes) {
    TORCH_CHECK(shape.sizes.size() == shapes[0].sizes.size() && shape.dtype == shapes[0].dtype,
                "from_local: expected one number of dimensions and one dtype on all ranks, got ",
                list_shapes(layout, shapes));
  }
  at::DimVector sizes;
  for (std::size_t d = 0; d < shapes[0].sizes.size(); ++d) {
    sizes.push_back(total_size(layout, placements, shapes, static_cast<std::int64_t>(d)));
  }
  for (std::size_t r = 0; r < shapes.size(); ++r) {
    const auto coordinate = coordinate_of_index(layout, static_cast<std::int64_t>(r));
    const auto expected = local_sizes(sizes, placements, layout.shape, coordinate);
    TORCH_CHECK(std::equal(expected.begin(), expected.end(), shapes[r].sizes.begin(), shapes[r].sizes.end()),
                "from_local: the local sizes are not the chunks of one tensor of sizes [", c10::Join(", ", sizes),
                "] with placements ", to_string(placements), ": expected sizes [", c10::Join(", ", expected),
                "] on world rank ", layout.ranks[r], ", got ", list_shapes(layout, shapes));
  }
  return sizes;
}

// Dense strides with the dimension order of a local tensor. Dimensions of one element have no order.
at::DimVector strides_like(at::IntArrayRef local, at::IntArrayRef strides, at::IntArrayRef sizes) {
  const auto row_major = [](at::IntArrayRef lengths, at::IntArrayRef steps) {
    return c10::_compute_contiguous<std::int64_t>(lengths, steps, c10::multiply_integers(lengths));
  };
  if (row_major(local, strides)) return c10::contiguous_strides(sizes);
  const at::DimVector dense(at::infer_dense_strides(sizes, strides));
  return row_major(sizes, dense) ? at::DimVector(c10::contiguous_strides(sizes)) : dense;
}

// Global strides must be equal on every rank. Small local tensors may not determine an order, so the largest decides.
at::DimVector agree_strides(const std::vector<LocalShape>& shapes, at::IntArrayRef sizes) {
  const auto& largest = *std::max_element(shapes.begin(), shapes.end(), [](const auto& a, const auto& b) {
    return c10::multiply_integers(a.sizes) < c10::multiply_integers(b.sizes);
  });
  return strides_like(largest.sizes, largest.strides, sizes);
}

// Whether the local tensor of each rank determines the order of all dimensions.
bool all_show_order(const MeshImpl& mesh, const Placements& placements, at::IntArrayRef sizes) {
  for (std::int64_t r = 0; r < mesh.layout.size(); ++r) {
    const auto part = local_sizes(sizes, placements, mesh.layout.shape, coordinate_of_index(mesh.layout, r));
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      if (part[d] < 2 && sizes[d] > 1) return false;
    }
  }
  return true;
}

// Strides without communication: the local order if it is unambiguous on every rank, otherwise row-major.
at::DimVector strides_alone(const at::Tensor& local, const MeshImpl& mesh, const Placements& placements,
                            at::IntArrayRef sizes) {
  if (!all_show_order(mesh, placements, sizes)) return c10::contiguous_strides(sizes);
  return strides_like(local.sizes(), local.strides(), sizes);
}

// The tensor with the values of the mesh's first rank; gradients flow to the tensor passed on this rank.
at::Tensor broadcast_from_first_rank(const MeshImpl& mesh, const at::Tensor& tensor) {
  auto result = tensor.clone(at::MemoryFormat::Contiguous);
  at::AutoDispatchBelowADInplaceOrView guard;
  all_ranks(mesh).broadcast(result.detach(), 0).wait();
  return result;
}

}  // namespace

SpecPtr infer_spec(const at::Tensor& local, const c10::intrusive_ptr<MeshImpl>& mesh, Placements placements,
                   at::IntArrayRef sizes, at::IntArrayRef strides) {
  const bool given = !sizes.empty() || local.dim() == 0;
  TORCH_CHECK(given || mesh->is_member, "from_local: expected global sizes on world rank ", mesh->world_rank,
              ", which is outside the mesh");
  std::vector<LocalShape> shapes;  // exchanged if ranks have to agree
  if (!given && mesh->layout.size() > 1) shapes = exchange_shapes(*mesh, local, "from_local");
  const at::DimVector global = !shapes.empty() ? agree_sizes(*mesh, placements, shapes)
                               : given         ? at::DimVector(sizes)
                                               : at::DimVector(local.sizes());
  if (given && mesh->is_member) {
    const auto expected = local_sizes(global, placements, mesh->layout.shape, mesh->coordinate);
    TORCH_CHECK(local.sizes().equals(expected), "from_local: expected local sizes [", c10::Join(", ", expected),
                "] of a tensor of sizes [", c10::Join(", ", global), "] with placements ", to_string(placements),
                " at coordinate [", c10::Join(", ", mesh->coordinate), "], got ", local.sizes());
  }
  const at::DimVector global_strides = !strides.empty()  ? at::DimVector(strides)
                                       : !shapes.empty() ? agree_strides(shapes, global)
                                                         : strides_alone(local, *mesh, placements, global);
  TORCH_CHECK(global_strides.size() == global.size(), "from_local: expected ", global.size(), " strides, got ",
              global_strides.size());
  TORCH_CHECK(
      std::all_of(global_strides.begin(), global_strides.end(), [](std::int64_t stride) { return stride >= 0; }),
      "from_local: expected strides >= 0, got ", at::IntArrayRef(global_strides));
  return intern_spec(mesh, std::move(placements), global, global_strides, local.scalar_type());
}

at::Tensor broadcast_if_different(const at::Tensor& tensor, const MeshImpl& mesh) {
  if (!mesh.is_member || mesh.layout.size() == 1) return tensor;
  const auto shapes = exchange_shapes(mesh, tensor, "distribute_tensor",
                                      tensor.is_meta() ? 0 : static_cast<std::int64_t>(content_hash(tensor)));
  bool equal = true, have_same_layout = true;
  for (const auto& shape : shapes) {
    TORCH_CHECK(
        (shape.hash == 0) == (shapes[0].hash == 0),
        "distribute_tensor: expected the full tensor on every rank, got one without values (on meta) on some ranks");
    TORCH_CHECK(shape.sizes == shapes[0].sizes && shape.dtype == shapes[0].dtype,
                "distribute_tensor: expected the full tensor on every rank, but their sizes or dtypes differ: ",
                list_shapes(mesh.layout, shapes));
    equal = equal && shape.hash == shapes[0].hash;
    have_same_layout = have_same_layout && shape.strides == shapes[0].strides;
  }
  if (!equal) return broadcast_from_first_rank(mesh, tensor);
  return have_same_layout ? tensor : tensor.clone(at::MemoryFormat::Contiguous);
}

}  // namespace dtensor
