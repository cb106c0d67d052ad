// An n-dimensional array of ranks with named dimensions.
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

// An array of ranks. A cheap handle; copies refer to the same mesh.
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
  // Size of one dimension.
  std::int64_t size(std::int64_t dim) const;
  std::int64_t size(const std::string& name) const;
  // Sizes of all dimensions.
  at::IntArrayRef shape() const;
  at::IntArrayRef ranks() const;  // world ranks, row-major
  // Names of the dimensions; empty if none were given.
  const std::vector<std::string>& names() const;
  std::int64_t dim(const std::string& name) const;  // index of a named dimension; the error lists the names
  c10::DeviceType device_type() const;              // device of local tensors

  // The same ranks, for tensors that are kept in host memory. They report the mesh's device although their storage is
  // on the CPU, since autograd requires a gradient on the device of its tensor. An operator that combines one with
  // tensors of this mesh, or that records a graph, copies it to the device. List, in-place and factory operators on
  // such tensors alone run on the host. A mesh of CPUs has one, too, whose tensors are copied as from another device.
  DeviceMesh offloaded() const;

  bool is_member() const;  // whether this rank is in the mesh
  // This rank's coordinate, one index per dimension; nullopt if it is not in the mesh.
  std::optional<std::vector<std::int64_t>> coordinate() const;
  // The coordinate of a world rank; nullopt if it is not in the mesh.
  std::optional<std::vector<std::int64_t>> coordinate_of(std::int64_t rank) const;
  // This rank's coordinate along one dimension; throws on ranks outside the mesh.
  std::int64_t local_rank(const std::string& name) const;

  // The sub-mesh that contains this rank, along the named dimensions, in the given order.
  DeviceMesh operator[](const std::string& name) const;
  DeviceMesh operator[](const std::vector<std::string>& names) const;
  DeviceMesh operator[](std::initializer_list<std::string> names) const {
    return (*this)[std::vector<std::string>(names)];
  }
  DeviceMesh flatten(const std::string& name = "") const;  // one-dimensional, over all ranks, row-major
  // Another shape over the same ranks, row-major, for instance sparse edp x ep over dense replicate x shard x tp.
  DeviceMesh view(at::IntArrayRef shape, std::vector<std::string> names = {}) const;

  // The communicator along a dimension, or along several (row-major over them). Its members create it on first use. All
  // meshes of a world share the communicator of one rank set. Throws on ranks outside the mesh.
  Communicator communicator(std::int64_t dim) const;
  Communicator communicator(const std::string& name) const;
  Communicator communicator(const std::vector<std::int64_t>& dims) const;
  Communicator communicator() const;  // all ranks of the mesh
  Communicator world() const;

  // Compares ranks, shape, names and device.
  friend DTENSOR_API bool operator==(const DeviceMesh& a, const DeviceMesh& b);
  std::string str() const;      // DeviceMesh(cpu, replicate=2, tp=2, ranks=[0, 1, 2, 3])
  std::string diagram() const;  // nested boxes with named rows and columns

 private:
  // Internal.
  friend const c10::intrusive_ptr<MeshImpl>& impl_of(const DeviceMesh& mesh) { return mesh.impl_; }

  c10::intrusive_ptr<MeshImpl> impl_;
};

// A mesh over the first prod(shape) ranks of `world`, row-major. Every rank of `world` calls it; no communication.
DTENSOR_API DeviceMesh init_device_mesh(const Communicator& world, c10::DeviceType device, at::IntArrayRef shape,
                                        std::vector<std::string> names = {});
// A mesh over the given world ranks.
DTENSOR_API DeviceMesh device_mesh(const Communicator& world, c10::DeviceType device, at::IntArrayRef ranks,
                                   at::IntArrayRef shape, std::vector<std::string> names = {});

}  // namespace dtensor
