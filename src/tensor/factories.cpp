// Factories on a mesh: ATen's, called inside a MeshScope.

#include <ATen/Functions.h>

#include "dtensor/tensor.h"
#include "placement/shard_map.h"

namespace dtensor {
namespace {

template <class Make>
DTensor on_mesh(const char* name, std::int64_t ndim, const DeviceMesh& mesh, Placements placements,
                at::TensorOptions options, const Make& make) {
  TORCH_CHECK(mesh, name, ": expected a mesh, got an empty DeviceMesh");
  if (placements.empty()) placements.resize(static_cast<std::size_t>(mesh.ndim()));
  placements = normalize_placements(std::move(placements), ndim, mesh.shape());
  const bool requires_grad = options.requires_grad();
  DTensor result = [&] {
    const MeshScope scope(mesh, std::move(placements));
    return DTensor(make(options.device(mesh.device_type()).requires_grad(std::nullopt)));
  }();
  if (requires_grad) result.requires_grad_();
  return result;
}

std::int64_t ndim(at::IntArrayRef sizes) { return static_cast<std::int64_t>(sizes.size()); }

}  // namespace

DTensor zeros(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options) {
  return on_mesh("zeros", ndim(sizes), mesh, std::move(placements), options,
                 [&](at::TensorOptions o) { return at::zeros(sizes, o); });
}

DTensor ones(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options) {
  return on_mesh("ones", ndim(sizes), mesh, std::move(placements), options,
                 [&](at::TensorOptions o) { return at::ones(sizes, o); });
}

DTensor empty(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options) {
  return on_mesh("empty", ndim(sizes), mesh, std::move(placements), options,
                 [&](at::TensorOptions o) { return at::empty(sizes, o); });
}

DTensor full(at::IntArrayRef sizes, const at::Scalar& value, const DeviceMesh& mesh, Placements placements,
             at::TensorOptions options) {
  return on_mesh("full", ndim(sizes), mesh, std::move(placements), options,
                 [&](at::TensorOptions o) { return at::full(sizes, value, o); });
}

DTensor rand(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options) {
  return on_mesh("rand", ndim(sizes), mesh, std::move(placements), options,
                 [&](at::TensorOptions o) { return at::rand(sizes, o); });
}

DTensor randn(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options) {
  return on_mesh("randn", ndim(sizes), mesh, std::move(placements), options,
                 [&](at::TensorOptions o) { return at::randn(sizes, o); });
}

DTensor arange(const at::Scalar& end, const DeviceMesh& mesh, Placements placements, at::TensorOptions options) {
  return on_mesh("arange", 1, mesh, std::move(placements), options,
                 [&](at::TensorOptions o) { return at::arange(end, o); });
}

}  // namespace dtensor
