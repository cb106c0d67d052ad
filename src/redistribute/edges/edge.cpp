// Shared by the edges: the members, their regions, and the targets of received parts.
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

std::vector<Coordinate> EdgeCall::members() const {
  std::vector<Coordinate> members;
  for (std::int64_t i = 0, n = geometry.group_size(edge.axes); i < n; ++i) {
    members.push_back(coordinate_along(geometry.mesh, edge.axes, i, mesh.coordinate));
  }
  return members;
}

void PendingReceives::expect(Region part) {
  auto view = view_of(result_, held_, part);
  apart_.push_back(!view);
  views_.push_back(view ? std::move(*view) : result_buffer(part.sizes(), result_));
  parts_.push_back(std::move(part));
}

void PendingReceives::finish() const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (apart_[i]) write_part(result_, held_, parts_[i], views_[i]);
  }
}

}  // namespace dtensor
