// Parts of a global tensor as views of a local one. Collectives read and write such views in place, so that nothing is
// packed, except where a part is several ranges of a dimension (a StridedShard without its axes).
#pragma once

#include <ATen/core/Tensor.h>

#include "redistribute/plan/region.h"

namespace dtensor {

// Where global index `index` lies in the concatenation of `held`, or would, were it there.
std::int64_t concatenated_index(const Segments& held, std::int64_t index);

// The slices of `whole` along `dim` that the segments name.
at::Tensor select_segments(const at::Tensor& full, std::int64_t dim, const Segments& segments);

// `part` of the region `held` that `local` stores: a view if it is one range of each dimension, else none.
std::optional<at::Tensor> view_of(const at::Tensor& local, const Region& held, const Region& part);
// The same, copied where it has to be.
at::Tensor read_part(const at::Tensor& local, const Region& held, const Region& part);
// Copies `values` into `part` of `local`.
void write_part(const at::Tensor& local, const Region& held, const Region& part, const at::Tensor& values);

}  // namespace dtensor
