// Converts regular tensors of a model to DTensors, in the members that hold them.
#include <ATen/ATen.h>

#include <unordered_map>
#include <unordered_set>

#include "dtensor/nn.h"
#include "dtensor/tensor.h"
#include "internal/memory_kind.h"
#include "internal/parameter_swap.h"

namespace dtensor::nn {
namespace {

at::Tensor placed(const at::Tensor& tensor, const DeviceMesh& mesh, Placements placements) {
  const MemoryKindScope kind(MemoryKind::parameter);
  if (is_dtensor(tensor)) {
    TORCH_CHECK(DTensor(tensor).mesh() == mesh, "distribute: expected a tensor on ", mesh.str(), ", got one on ",
                DTensor(tensor).mesh().str());
    DTensor(tensor).redistribute_(std::move(placements));
    return tensor;
  }
  const at::Tensor result =
      tensor.is_meta() ? at::Tensor(dtensor::empty(tensor.sizes(), mesh, std::move(placements), tensor.scalar_type()))
                       : at::Tensor(distribute_tensor(tensor.detach(), mesh, std::move(placements)));
  return result.requires_grad_(tensor.requires_grad());
}

}  // namespace

void distribute(const NamedTensors& tensors, const DeviceMesh& mesh, const Module::PlacementFn& place) {
  retie_shared_parameters(tensors);
  std::unordered_map<const c10::TensorImpl*, at::Tensor> done;  // tied tensors are converted once
  std::unordered_set<const at::Tensor*> seen;                   // a module that is registered twice is listed twice
  std::vector<at::Tensor> old;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor->defined() || !seen.insert(tensor).second) continue;
    const auto found = done.find(tensor->unsafeGetTensorImpl());
    if (found == done.end()) {
      old.push_back(*tensor);
      *tensor = done[old.back().unsafeGetTensorImpl()] = placed(*tensor, mesh, place(name, *tensor));
      if (!tensor->is_same(old.back())) record_parameter_swap(old.back(), *tensor);
    } else {
      *tensor = found->second;
    }
  }
}

void Module::distribute(const DeviceMesh& mesh, const PlacementFn& place) {
  NamedTensors all = named_parameters();
  const NamedTensors buffers = named_buffers();
  all.insert(all.end(), buffers.begin(), buffers.end());
  nn::distribute(all, mesh, place);
}

}  // namespace dtensor::nn
