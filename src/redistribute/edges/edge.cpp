// Shared by the edges: the regions of members, and their exchange.
#include "redistribute/edges/edge.h"

#include "redistribute/result_buffers.h"

namespace dtensor {

EdgeCall::EdgeCall(const Edge& the_edge, const MeshImpl& the_mesh, const TensorGeometry& the_geometry, at::Tensor input,
                   at::ScalarType own_dtype, bool is_owned)
    : edge(the_edge),
      mesh(the_mesh),
      geometry(the_geometry),
      local(std::move(input)),
      dtype(own_dtype),
      owned(is_owned),
      from(edge.from, geometry),
      to(edge.to, geometry),
      held(region_of(from, geometry, mesh.coordinate)),
      wanted(region_of(to, geometry, mesh.coordinate)) {}

std::vector<Region> EdgeCall::regions(const SplitLayout& layout) const {
  std::vector<Region> regions;
  for (std::int64_t i = 0, n = geometry.group_size(edge.axes); i < n; ++i) {
    regions.push_back(region_of(layout, geometry, coordinate_along(geometry.mesh, edge.axes, i, mesh.coordinate)));
  }
  return regions;
}

TransferPlan EdgeCall::plan() const {
  TransferPlan plan{{}, {}, held, wanted};
  if (edge.kind != EdgeKind::all_gather) plan.sends = overlaps(held, regions(to));
  if (edge.kind != EdgeKind::reduce_scatter) plan.receives = overlaps(wanted, regions(from));
  return plan;
}

RegionExchange exchange_of(const EdgeCall& call) {
  return RegionExchange(call.plan(), call.local, result_buffer(call.wanted.sizes(), call.local));
}

}  // namespace dtensor
