// One function per kind of edge. Each converts this rank's local tensor from edge.from to edge.to. Those that
// communicate are collective over the ranks that differ in edge.axes.
#pragma once

#include "internal/region_exchange.h"
#include "mesh/mesh_impl.h"
#include "redistribute/regions/part_views.h"

namespace dtensor {

struct EdgeCall {
  EdgeCall(const Edge& edge, const MeshImpl& mesh, const TensorGeometry& geometry, at::Tensor local,
           at::ScalarType dtype, bool owned);

  const Edge& edge;
  const MeshImpl& mesh;
  const TensorGeometry& geometry;
  const at::Tensor local;
  const at::ScalarType dtype;  // the tensor's own dtype, if `local` has a wider one
  const bool owned;            // an intermediate result that may be overwritten
  const SplitLayout from, to;
  const Region held, wanted;  // this rank's part before and after

  const Communicator& communicator() const { return mesh.communicator(edge.axes); }
  // The region of each member of the communicator in a layout, in its order.
  std::vector<Region> regions(const SplitLayout& layout) const;
  // What members hold and want of each other's parts. An all_gather has no sends, a reduce_scatter no receives: the
  // collective takes the local tensor, or fills the result.
  TransferPlan plan() const;
};

at::Tensor run_slice(const EdgeCall& call);
at::Tensor run_all_gather(const EdgeCall& call);
at::Tensor run_all_to_all(const EdgeCall& call);
at::Tensor run_all_reduce(const EdgeCall& call);
at::Tensor run_reduce_scatter(const EdgeCall& call);
at::Tensor run_make_partial(const EdgeCall& call);

// The parts that are sent and received, with a new result.
RegionExchange exchange_of(const EdgeCall& call);

}  // namespace dtensor
