// Replaces the placement of a parameter on one axis. If an axis to the left already splits the same dimension (fully
// sharded parameters), tensor parallelism must still split first. Each of its ranks then has one contiguous range of
// the dimension after the parameter is gathered. The other axis therefore becomes a strided shard.
#include "parallel/place_parameter.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <unordered_set>

#include "dtensor/tensor.h"
#include "internal/memory_kind.h"
#include "internal/parameter_swap.h"
#include "internal/shard_segments.h"
#include "parallel/mesh_slice.h"

namespace dtensor {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// Placements on `mesh` with `placement` on `axis`.
Placements combined(Placements placements, const DeviceMesh& mesh, std::int64_t axis, Placement placement) {
  placements[at(axis)] = placement;
  if (!placement.is_shard() || lists_sizes(placement) || mesh.size(axis) == 1) return placements;  // splits first
  for (std::int64_t a = 0; a < axis; ++a) {
    Placement& other = placements[at(a)];
    if (other.is_shard(placement.dim())) other = after_split(other, mesh.size(axis));
  }
  return placements;
}

// Replicates on the axis, and undoes the strided shards that it caused on axes to its left.
Placements without_axis(Placements placements, const DeviceMesh& mesh, std::int64_t axis) {
  const Placement old = std::exchange(placements[at(axis)], Replicate());
  if (!old.is_shard()) return placements;
  for (std::int64_t a = 0; a < axis; ++a) {
    Placement& other = placements[at(a)];
    if (other.is_shard(old.dim())) other = without_split(other, mesh.size(axis));
  }
  return placements;
}

// Whether the mesh of a tensor has axes that `mesh` lacks, although its ranks may be the same (experts on their sparse
// mesh).
bool is_on_other_mesh(const at::Tensor& tensor, const DeviceMesh& mesh) {
  if (!is_dtensor(tensor) || DTensor(tensor).mesh() == mesh) return false;
  const auto own = DTensor(tensor).mesh();
  const auto& known = mesh.names();
  return !std::all_of(own.names().begin(), own.names().end(),
                      [&](const auto& name) { return std::find(known.begin(), known.end(), name) != known.end(); });
}

// A tensor on a slice of the mesh as a tensor on the mesh.
DTensor on_full_mesh(const DTensor& tensor, const DeviceMesh& mesh, const std::string& name) {
  TORCH_CHECK(is_slice(tensor.mesh(), mesh), "parallelize: parameter '", name, "' is on ", tensor.mesh().str(),
              ", which is no slice of ", mesh.str());
  return DTensor::from_local(tensor.to_local(), mesh, placements_on_full_mesh(tensor, mesh), tensor.sizes(),
                             tensor.strides());
}

at::Tensor placed(const at::Tensor& tensor, const DeviceMesh& mesh, std::int64_t axis, Placement placement,
                  const std::string& name) {
  const MemoryKindScope kind(MemoryKind::parameter);
  const Placements full(at(mesh.ndim()));
  if (tensor.is_meta()) {
    return dtensor::empty(tensor.sizes(), mesh, combined(full, mesh, axis, placement), tensor.scalar_type());
  }
  if (!is_dtensor(tensor)) return distribute_tensor(tensor, mesh, combined(full, mesh, axis, placement));
  const bool there = DTensor(tensor).mesh() == mesh;
  DTensor result = there ? DTensor(tensor) : on_full_mesh(DTensor(tensor), mesh, name);
  const Placements others = without_axis(result.placements(), mesh, axis);
  result.redistribute_(combined(others, mesh, axis, placement));
  return result;
}

// Tied tensors are one tensor: an entry for one of its names applies to all.
std::map<const c10::TensorImpl*, Placement> placement_by_tensor(const NamedTensors& parameters,
                                                                const AxisPlacementFunction& place) {
  std::map<const c10::TensorImpl*, Placement> placements;
  for (const auto& [name, tensor] : parameters) {
    const std::optional<Placement> placement = place(name);
    if (!placement) continue;
    const auto [it, fresh] = placements.emplace(tensor->unsafeGetTensorImpl(), *placement);
    TORCH_CHECK(fresh || it->second == *placement,
                "parallelize: expected one placement for all names of a tied tensor, got ", it->second.str(),
                " and, for '", name, "', ", placement->str());
  }
  return placements;
}

}  // namespace

void place_parameters(const NamedTensors& parameters, const DeviceMesh& mesh, std::int64_t axis,
                      const AxisPlacementFunction& place) {
  at::NoGradGuard no_grad;
  const auto placements = placement_by_tensor(parameters, place);
  std::map<const c10::TensorImpl*, std::pair<at::Tensor, at::Tensor>> done;  // old and new; keeps the old alive
  std::unordered_set<const at::Tensor*> seen;  // a module that is registered twice is listed twice
  for (const auto& [name, tensor] : parameters) {
    if (!seen.insert(tensor).second) continue;
    auto& [old, fresh] = done[tensor->unsafeGetTensorImpl()];
    if (!fresh.defined()) {
      old = *tensor;
      const auto it = placements.find(tensor->unsafeGetTensorImpl());
      const bool stays = it == placements.end() && is_on_other_mesh(old, mesh);
      fresh = stays ? old : placed(old, mesh, axis, it == placements.end() ? Replicate() : it->second, name);
      if (!fresh.is_same(old)) {
        fresh.requires_grad_(old.requires_grad());
        record_parameter_swap(old, fresh);
      }
    }
    *tensor = fresh;
  }
}

}  // namespace dtensor
