// Halos of grids: ghost layers around the part of an image, a volume or a field that each rank has, for stencils on
// regular tensors. Operators on DTensors (convolutions, pools, paddings) exchange the elements that they need by
// themselves.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/placement.h"
#include "dtensor/tensor.h"

namespace dtensor {

// The values of ghosts outside of the grid. `reflect` does not repeat the first or last element.
enum class Boundary : std::uint8_t { zero, replicate, reflect, periodic };

// Ghost layers along one dimension.
struct GhostLayers {
  std::int64_t dim;
  std::int64_t before = 0, after = 0;
  Boundary boundary = Boundary::zero;
};

// The ghost layers of a grid whose dimensions are sharded. Immutable; a cheap handle.
//
//   GridHalo halo(mesh, {Shard(0), Shard(1)}, {ny, nx}, {{0, 1, 1}, {1, 1, 1, Boundary::periodic}});
//   at::Tensor extended = halo.exchange(local);                 // with ghosts; differentiable
//   DTensor field = halo.from_local(array);                     // the interior; shares the array's memory
//   halo.update(array);                                         // overwrites the ghosts in the host's array
//
// Layers may be thicker than a shard: ghosts then come from several ranks. Each rank differentiates its own share of
// the loss, and receives the gradient of the sum of all shares.
class DTENSOR_API GridHalo {
 public:
  // `sizes`: of the grid. Dimensions may be sharded or not; each rank's part must be one range. Collective: one
  // all-to-all of a number per rank and one all-reduce for each entry of `layers`. Throws c10::Error on every rank if a
  // layer does not fit the grid: a dimension that is out of range or given twice, a negative number of layers, more
  // reflected layers than `size - 1`, or more periodic ones than `size`.
  GridHalo(const DeviceMesh& mesh, const Placements& placements, at::IntArrayRef sizes,
           std::vector<GhostLayers> layers);

  // The local part followed and preceded by its ghosts along each dimension of the layers, corners included. Along a
  // dimension of which this rank has no elements there are no ghosts. Differentiable any number of times; the adjoint
  // sends the gradients of ghosts back to the owners, which add them. Collective: one all-to-all for each dimension.
  at::Tensor exchange(const at::Tensor& local) const;

  // The view of `array`, a local part with ghosts, without its ghosts.
  at::Tensor interior(const at::Tensor& array) const;
  // The DTensor of the interior of `array`, in its memory: no copy. Operators on it exchange the elements that they
  // read, and do not use the ghosts. `array` is row-major, or a copy is made. Differentiable.
  DTensor from_local(const at::Tensor& array) const;
  // Overwrites the ghosts of `array` with their owners' elements. Its memory stays in place; autograd does not record
  // it. Collective as exchange().
  void update(const at::Tensor& array) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace dtensor
