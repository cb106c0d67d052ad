// The public handle of a mesh. Since every rank runs the same program, a rank outside the mesh may slice, view and
// print it. It has no coordinate and no communicators there.
#include "dtensor/mesh.h"

#include <c10/util/Exception.h>

#include "mesh/mesh_impl.h"
#include "mesh/mesh_layout.h"

namespace dtensor {
namespace {

const MeshImpl& checked(const c10::intrusive_ptr<MeshImpl>& impl) {
  TORCH_CHECK(impl, "this DeviceMesh is empty: create one with init_device_mesh");
  return *impl;
}

DeviceMesh sibling(const MeshImpl& mesh, MeshLayout layout) {
  const auto seen = intern_mesh(std::move(layout), mesh.world(), mesh.reported_device());
  return DeviceMesh(mesh.compute_mesh() != nullptr ? intern_host_mesh(seen) : seen);
}

const Coordinate& checked_coordinate(const MeshImpl& mesh) {
  TORCH_CHECK(mesh.is_member, "rank ", mesh.world_rank, " is not in ", mesh.str(), " and so has no coordinate there");
  return mesh.coordinate;
}

}  // namespace

DeviceMesh::DeviceMesh(c10::intrusive_ptr<MeshImpl> impl) : impl_(std::move(impl)) {}
DeviceMesh::DeviceMesh() = default;
DeviceMesh::~DeviceMesh() = default;
DeviceMesh::DeviceMesh(const DeviceMesh&) = default;
DeviceMesh::DeviceMesh(DeviceMesh&&) noexcept = default;
DeviceMesh& DeviceMesh::operator=(const DeviceMesh&) = default;
DeviceMesh& DeviceMesh::operator=(DeviceMesh&&) noexcept = default;

std::int64_t DeviceMesh::ndim() const { return checked(impl_).layout.ndim(); }
std::int64_t DeviceMesh::size() const { return checked(impl_).layout.size(); }
std::int64_t DeviceMesh::size(std::int64_t dim) const {
  const auto& layout = checked(impl_).layout;
  return layout.shape[checked_dim(layout, dim)];
}
std::int64_t DeviceMesh::size(const std::string& name) const { return size(dim(name)); }
at::IntArrayRef DeviceMesh::shape() const { return checked(impl_).layout.shape; }
at::IntArrayRef DeviceMesh::ranks() const { return checked(impl_).layout.ranks; }
const std::vector<std::string>& DeviceMesh::names() const { return checked(impl_).layout.names; }
std::int64_t DeviceMesh::dim(const std::string& name) const { return dim_of_name(checked(impl_).layout, name); }
c10::DeviceType DeviceMesh::device_type() const { return checked(impl_).device; }
bool DeviceMesh::is_member() const { return checked(impl_).is_member; }

std::optional<std::vector<std::int64_t>> DeviceMesh::coordinate() const {
  const auto& mesh = checked(impl_);
  if (!mesh.is_member) return std::nullopt;
  return std::vector<std::int64_t>(mesh.coordinate.begin(), mesh.coordinate.end());
}

std::optional<std::vector<std::int64_t>> DeviceMesh::coordinate_of(std::int64_t rank) const {
  const auto found = coordinate_of_rank(checked(impl_).layout, rank);
  if (!found) return std::nullopt;
  return std::vector<std::int64_t>(found->begin(), found->end());
}

std::int64_t DeviceMesh::local_rank(const std::string& name) const {
  const auto d = dim(name);
  return checked_coordinate(checked(impl_))[d];
}

DeviceMesh DeviceMesh::operator[](const std::string& name) const { return (*this)[std::vector<std::string>{name}]; }

DeviceMesh DeviceMesh::operator[](const std::vector<std::string>& names) const {
  const auto& mesh = checked(impl_);
  std::vector<std::int64_t> dims;
  for (const auto& name : names) dims.push_back(dim_of_name(mesh.layout, name));
  // Outside the mesh: the slice through its first rank, which does not contain this rank either.
  const auto at = mesh.is_member ? mesh.coordinate : Coordinate(mesh.layout.ndim(), 0);
  return sibling(mesh, slice_layout(mesh.layout, dims, at));
}

DeviceMesh DeviceMesh::flatten(const std::string& name) const {
  const auto& mesh = checked(impl_);
  return sibling(mesh, flatten_layout(mesh.layout, name));
}

DeviceMesh DeviceMesh::view(at::IntArrayRef shape, std::vector<std::string> names) const {
  const auto& mesh = checked(impl_);
  return sibling(mesh, view_layout(mesh.layout, shape, std::move(names)));
}

DeviceMesh DeviceMesh::offloaded() const {
  (void)checked(impl_);
  return DeviceMesh(intern_host_mesh(impl_));
}

Communicator DeviceMesh::communicator(std::int64_t dim) const {
  const auto& mesh = checked(impl_);
  return mesh.communicator(AxisMask{1} << checked_dim(mesh.layout, dim));
}
Communicator DeviceMesh::communicator(const std::string& name) const { return communicator(dim(name)); }
Communicator DeviceMesh::communicator(const std::vector<std::int64_t>& dims) const {
  const auto& mesh = checked(impl_);
  AxisMask axes = 0;
  for (const std::int64_t dim : dims) axes |= AxisMask{1} << checked_dim(mesh.layout, dim);
  return mesh.communicator(axes);
}
Communicator DeviceMesh::communicator() const {
  const auto& mesh = checked(impl_);
  return mesh.communicator((AxisMask{1} << mesh.layout.ndim()) - 1);
}
Communicator DeviceMesh::world() const { return checked(impl_).world(); }

bool operator==(const DeviceMesh& a, const DeviceMesh& b) {
  if (a.impl_ == b.impl_ || !a.impl_ || !b.impl_) return a.impl_ == b.impl_;
  const bool both_store = (a.impl_->compute_mesh() == nullptr) == (b.impl_->compute_mesh() == nullptr);
  return a.impl_->device == b.impl_->device && a.impl_->reported_device() == b.impl_->reported_device() && both_store &&
         a.impl_->layout == b.impl_->layout;
}

std::string DeviceMesh::str() const { return impl_ ? impl_->str() : "DeviceMesh()"; }

std::string DeviceMesh::diagram() const {
  const auto& mesh = checked(impl_);
  return draw_layout(mesh.layout, mesh.device, mesh.world_rank);
}

DeviceMesh init_device_mesh(const Communicator& world, c10::DeviceType device, at::IntArrayRef shape,
                            std::vector<std::string> names) {
  TORCH_CHECK(world, "init_device_mesh needs a world communicator");
  return DeviceMesh(intern_mesh(make_layout(world.size(), shape, std::move(names)), world, device));
}

DeviceMesh device_mesh(const Communicator& world, c10::DeviceType device, at::IntArrayRef ranks, at::IntArrayRef shape,
                       std::vector<std::string> names) {
  TORCH_CHECK(world, "device_mesh needs a world communicator");
  return DeviceMesh(intern_mesh(make_layout(world.size(), ranks.vec(), shape, std::move(names)), world, device));
}

}  // namespace dtensor
