// One function per kind of edge. Each converts this rank's local tensor from edge.from to edge.to. Those that
// communicate are collective over the ranks that differ in edge.axes.
#pragma once

#include "mesh/mesh_impl.h"
#include "redistribute/part_views.h"

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
  // The coordinates of the communicator's members, in its order.
  std::vector<Coordinate> members() const;
};

at::Tensor run_slice(const EdgeCall& call);
at::Tensor run_all_gather(const EdgeCall& call);
at::Tensor run_all_to_all(const EdgeCall& call);
at::Tensor run_all_reduce(const EdgeCall& call);
at::Tensor run_reduce_scatter(const EdgeCall& call);
at::Tensor run_make_partial(const EdgeCall& call);

// Views of `result`, which stores `held`, for collectives to write to. Parts that are not views are received in
// separate buffers and copied by finish().
class PendingReceives {
 public:
  PendingReceives(const at::Tensor& result, const Region& held) : result_(result), held_(held) {}
  void expect(Region part);
  at::TensorList views() const { return views_; }
  void finish() const;

 private:
  const at::Tensor& result_;
  const Region& held_;
  std::vector<Region> parts_;
  std::vector<at::Tensor> views_;
  std::vector<bool> apart_;
};

}  // namespace dtensor
