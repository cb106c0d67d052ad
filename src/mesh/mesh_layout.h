// Arithmetic on mesh layouts: checks, slices, views, the lines along which ranks communicate, text and diagram. No
// communicators and no state.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <vector>

#include "placement/mesh_info.h"

namespace dtensor {

inline constexpr std::int64_t kMaxMeshDims = 8;

// Throws with the values if the layout is invalid. Sizes must be positive and multiply to the number of ranks; ranks
// must be distinct and below `world_size`. Names must be absent, or one per dimension, distinct and not empty.
MeshLayout make_layout(std::int64_t world_size, std::vector<std::int64_t> ranks, at::IntArrayRef shape,
                       std::vector<std::string> names);

// Ranks 0 .. prod(shape) - 1 over `shape`; throws if the world has fewer ranks.
MeshLayout make_layout(std::int64_t world_size, at::IntArrayRef shape, std::vector<std::string> names);

// The index of a named dimension; throws with the existing names.
std::int64_t dim_of_name(const MeshLayout& layout, const std::string& name);
// Accepts negative dimensions; throws if out of range.
std::int64_t checked_dim(const MeshLayout& layout, std::int64_t dim);

// The sub-mesh along `dims`, in that order, through `coordinate`.
MeshLayout slice_layout(const MeshLayout& layout, at::IntArrayRef dims, at::IntArrayRef coordinate);

// One dimension over all ranks, row-major. If `name` is empty, the names joined by '_' (none if the mesh has none).
MeshLayout flatten_layout(const MeshLayout& layout, const std::string& name);

// The same ranks in the same order, with another shape.
MeshLayout view_layout(const MeshLayout& layout, at::IntArrayRef shape, std::vector<std::string> names);

// Ranks that differ from `coordinate` in the axes of the mask only, row-major by coordinate.
std::vector<std::int64_t> line_ranks(const MeshLayout& layout, AxisMask axes, at::IntArrayRef coordinate);

// Example: DeviceMesh(cpu, replicate=2, tp=2, ranks=[0, 1, 2, 3]). Dimensions without a name are shown by their index.
std::string layout_str(const MeshLayout& layout, c10::DeviceType device);
// A dimension in messages: its name, or "dim 2".
std::string dim_title(const MeshLayout& layout, std::int64_t dim);
// The axes of a mask in messages: "dp", "dp_tp".
std::string axes_label(const MeshLayout& layout, AxisMask axes);

// The mesh as nested boxes: the last dimension runs to the right, the one before it down; each further one alternates
// between a row and a column of boxes. `self` (a world rank) is drawn in brackets.
std::string draw_layout(const MeshLayout& layout, c10::DeviceType device, std::int64_t self = -1);

}  // namespace dtensor
