// An n-dimensional, named arrangement of ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/export.h"

namespace dtensor {

class MeshImpl;

// An arrangement of ranks. A cheap handle; copies are the same mesh.
class DTENSOR_API DeviceMesh {
 public:
  DeviceMesh();  // no mesh
  explicit DeviceMesh(c10::intrusive_ptr<MeshImpl> impl);
  ~DeviceMesh();
  DeviceMesh(const DeviceMesh&);
  DeviceMesh(DeviceMesh&&) noexcept;
  DeviceMesh& operator=(const DeviceMesh&);
  DeviceMesh& operator=(DeviceMesh&&) noexcept;

  explicit operator bool() const { return static_cast<bool>(impl_); }
  // Number of dimensions.
  std::int64_t ndim() const;
  std::int64_t size() const;  // ranks in the mesh
  // Of one dimension.
  std::int64_t size(std::int64_t dim) const;
  std::int64_t size(const std::string& name) const;
  // Of all dimensions.
  at::IntArrayRef shape() const;
  at::IntArrayRef ranks() const;  // world ranks, row-major
  // Of the dimensions; empty where none were given.
  const std::vector<std::string>& names() const;
  std::int64_t dim(const std::string& name) const;  // index of a named dimension; error lists the names
  c10::DeviceType device_type() const;              // where local tensors are

  // The same ranks, for tensors that are kept in host memory: their local tensors are on the CPU, though they give
  // themselves out for tensors of this mesh's device (autograd wants a gradient to be where its tensor is). An operator
  // that computes with one, beside tensors of this mesh or with a graph, copies it here; list, in-place and factory
  // operators on such tensors alone run on the host. A mesh of CPUs is its own.
  DeviceMesh offloaded() const;

  bool is_member() const;  // whether this rank is in the mesh
  // This rank's coordinate, one index per dimension; nothing where it is not a member.
  std::optional<std::vector<std::int64_t>> coordinate() const;
  std::int64_t local_rank(const std::string& name) const;  // coordinate along one dimension; error outside the mesh

  // The sub-mesh through this rank along the named dimensions, in the order given.
  DeviceMesh operator[](const std::string& name) const;
  DeviceMesh operator[](const std::vector<std::string>& names) const;
  DeviceMesh operator[](std::initializer_list<std::string> names) const {
    return (*this)[std::vector<std::string>(names)];
  }
  DeviceMesh flatten(const std::string& name = "") const;  // 1-D over all ranks, row-major
  // Another shape over the same ranks, row-major: dense replicate x shard x tp seen as sparse edp x ep.
  DeviceMesh view(at::IntArrayRef shape, std::vector<std::string> names = {}) const;

  // This rank's line along a dimension, or along several (row-major over them). Made when first asked for, by its
  // members; shared by all meshes of a world with the same rank set. An error outside the mesh.
  Communicator communicator(std::int64_t dim) const;
  Communicator communicator(const std::string& name) const;
  Communicator communicator(const std::vector<std::int64_t>& dims) const;
  Communicator communicator() const;  // all ranks of the mesh
  Communicator world() const;

  // Equal by ranks, shape, names and device.
  friend DTENSOR_API bool operator==(const DeviceMesh& a, const DeviceMesh& b);
  std::string str() const;      // DeviceMesh(cpu, replicate=2, tp=2, ranks=[0, 1, 2, 3])
  std::string diagram() const;  // drawn as nested boxes, rows and columns named

 private:
  // For the library itself.
  friend const c10::intrusive_ptr<MeshImpl>& impl_of(const DeviceMesh& mesh) { return mesh.impl_; }

  c10::intrusive_ptr<MeshImpl> impl_;
};

// A mesh over the first prod(shape) ranks of `world`, row-major. Called by every rank of `world`; no communication.
DTENSOR_API DeviceMesh init_device_mesh(const Communicator& world, c10::DeviceType device, at::IntArrayRef shape,
                                        std::vector<std::string> names = {});
// A mesh over the given world ranks.
DTENSOR_API DeviceMesh device_mesh(const Communicator& world, c10::DeviceType device, at::IntArrayRef ranks,
                                   at::IntArrayRef shape, std::vector<std::string> names = {});

}  // namespace dtensor
