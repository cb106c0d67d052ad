// Arithmetic on mesh layouts: checking one, slicing it by dimension, seeing the same ranks in another shape, the lines
// along which ranks communicate, and its text and picture. Pure: no communicator, no rank of its own.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <vector>

#include "placement/mesh_info.h"

namespace dtensor {

inline constexpr std::int64_t kMaxMeshDims = 8;

// Throws with both values unless the sizes are positive and multiply to the number of ranks, the ranks are distinct and
// below `world_size`, and the names are absent or one per dimension, distinct and not empty.
MeshLayout make_layout(std::int64_t world_size, std::vector<std::int64_t> ranks, at::IntArrayRef shape,
                       std::vector<std::string> names);

// 0 .. prod(shape) - 1 over `shape`; throws where the world has fewer ranks.
MeshLayout make_layout(std::int64_t world_size, at::IntArrayRef shape, std::vector<std::string> names);

// Throws with the known names.
std::int64_t dim_of_name(const MeshLayout& layout, const std::string& name);
// Accepts negative dimensions; throws when out of range.
std::int64_t checked_dim(const MeshLayout& layout, std::int64_t dim);

// The sub-mesh along `dims`, in that order, through `coordinate`.
MeshLayout slice_layout(const MeshLayout& layout, at::IntArrayRef dims, at::IntArrayRef coordinate);

// One dimension over all ranks, row-major. `name` empty: the names joined by '_' (none where the mesh has none).
MeshLayout flatten_layout(const MeshLayout& layout, const std::string& name);

// Same ranks in the same order, another shape.
MeshLayout view_layout(const MeshLayout& layout, at::IntArrayRef shape, std::vector<std::string> names);

// Ranks that differ from `coordinate` in the axes of the mask only, row-major by coordinate.
std::vector<std::int64_t> line_ranks(const MeshLayout& layout, AxisMask axes, at::IntArrayRef coordinate);

// DeviceMesh(cpu, replicate=2, tp=2, ranks=[0, 1, 2, 3]); the name of dimension i is its number where it has none.
std::string layout_str(const MeshLayout& layout, c10::DeviceType device);
// The title of a dimension in messages: its name, or "dim 2".
std::string dim_title(const MeshLayout& layout, std::int64_t dim);
// The axes of a mask in messages: "dp", "dp_tp".
std::string axes_label(const MeshLayout& layout, AxisMask axes);

// The mesh as nested boxes: the last dimension runs to the right, the one before down, each further one is a row of
// boxes or a column of them in turn. `self` (a world rank) is drawn in brackets.
std::string draw_layout(const MeshLayout& layout, c10::DeviceType device, std::int64_t self = -1);

}  // namespace dtensor
