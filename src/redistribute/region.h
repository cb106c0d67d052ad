// Parts of a global tensor as views of a local one: what a rank holds, what two ranks' parts have in common, and where
// that lies in a local tensor. Collectives read and write such views in place, so that nothing is packed, except where
// a part is several ranges of a dimension (a StridedShard without its axes).
#pragma once

#include <ATen/core/Tensor.h>

#include "redistribute/plan/layout.h"

namespace dtensor {

// Global ranges by tensor dimension; the part is their product.
struct Region {
  c10::SmallVector<Segments, 4> dims;

  at::DimVector sizes() const;
  std::int64_t numel() const;
};

Region region_of(const Layout& layout, const Geometry& geometry, at::IntArrayRef coordinate);
Region common(const Region& a, const Region& b);

// `part` of the region `held` that `local` stores: a view if it is one range of each dimension, else none.
std::optional<at::Tensor> view_of(const at::Tensor& local, const Region& held, const Region& part);
// The same, copied where it has to be.
at::Tensor read_part(const at::Tensor& local, const Region& held, const Region& part);
// Copies `values` into `part` of `local`.
void write_part(const at::Tensor& local, const Region& held, const Region& part, const at::Tensor& values);

}  // namespace dtensor
