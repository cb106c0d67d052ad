// Parts of a global tensor as views of a local one. Collectives read and write such views in place, without packing,
// unless a part has several ranges of a dimension (a StridedShard without matching axes).
#pragma once

#include <ATen/core/Tensor.h>

#include "redistribute/plan/region.h"

namespace dtensor {

// The position of global index `index` in the concatenation of `held`, or its insertion position if it is not
// included.
std::int64_t concatenated_index(const Segments& held, std::int64_t index);

// The slices of `full` along `dim` given by the segments.
at::Tensor select_segments(const at::Tensor& full, std::int64_t dim, const Segments& segments);

// A view of `part` in `local`, which stores region `held`; nullopt unless the part is one range of each dimension.
std::optional<at::Tensor> view_of(const at::Tensor& local, const Region& held, const Region& part);
// The same, but copies the part if it is not a view.
at::Tensor read_part(const at::Tensor& local, const Region& held, const Region& part);
// Copies `values` to `part` of `local`.
void write_part(const at::Tensor& local, const Region& held, const Region& part, const at::Tensor& values);

}  // namespace dtensor
