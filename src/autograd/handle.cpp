// The DTensor handle: what it tells of itself, and how it changes placements.
#include "autograd/local_autograd.h"
#include "dtensor/tensor.h"
#include "placement/shard_map.h"

namespace dtensor {

const DTensorImpl& checked_impl(const at::Tensor& tensor) {
  auto* impl = dtensor_or_null(tensor);
  TORCH_CHECK(impl != nullptr, "an undefined DTensor has no mesh, placements or local tensor");
  return *impl;
}

bool is_dtensor(const at::Tensor& tensor) { return tensor.defined() && dtensor_or_null(tensor) != nullptr; }

DTensor::DTensor(at::Tensor tensor) : at::Tensor(std::move(tensor)) {
  TORCH_CHECK(!defined() || dtensor_or_null(*this) != nullptr, "not a DTensor: a plain ", toString(), " of sizes ",
              sizes(), "; use distribute_tensor or DTensor::from_local");
}

DeviceMesh DTensor::mesh() const {
  const auto& mesh = checked_impl(*this).spec()->mesh;
  return DeviceMesh(c10::intrusive_ptr<MeshImpl>::reclaim_copy(const_cast<MeshImpl*>(&acting(*mesh))));
}

const Placements& DTensor::placements() const { return checked_impl(*this).spec()->placements; }

std::string DTensor::spec_str() const { return checked_impl(*this).spec()->str(); }

DTensor DTensor::redistribute(Placements placements) const {
  const auto& spec = checked_impl(*this).spec();
  placements = normalize_placements(std::move(placements), dim(), spec->mesh->layout.shape);
  return DTensor(redistribute_tensor(*this, std::move(placements)));
}

at::Tensor DTensor::to_local(Placements grad_placements) const {
  return unwrap_local(*this, std::move(grad_placements));
}

}  // namespace dtensor
